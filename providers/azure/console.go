package azure

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// consoleTail is how much of a console is kept, in bytes.
const consoleTail = 64 << 10

// Console returns the end of a machine's serial console, which Azure keeps where
// the setting console_log is on (learn.microsoft.com/azure/virtual-machines/boot-diagnostics).
func (a *Adapter) Console(ctx context.Context, ref providers.Ref) ([]byte, error) {
	target := ref.String()
	if err := a.alive(ctx, "console", target); err != nil {
		return nil, err
	}
	f, err := a.look(ctx, "console", target, ref.Request)
	switch {
	case err != nil:
		return nil, err
	case f.vm == nil:
		return nil, a.errorf("console", target, providers.NotFound, "", "there is no machine")
	case !a.set.ConsoleLog:
		return nil, a.errorf("console", target, providers.Unsupported, "", "Azure keeps no console's log unless the setting console_log is on")
	}
	got, err := a.cloud.vms.RetrieveBootDiagnosticsData(ctx, f.name, f.name, &armcompute.VirtualMachinesClientRetrieveBootDiagnosticsDataOptions{})
	if err != nil {
		return nil, a.failure(ctx, "console", target, err)
	}
	if got.SerialConsoleLogBlobURI == nil {
		return nil, nil
	}
	data, e := a.blob(ctx, *got.SerialConsoleLogBlobURI)
	if e != nil {
		return nil, a.complete("console", target, e)
	}
	return data[max(0, len(data)-consoleTail):], nil
}

// blob reads what a signed address leads to. The address is a secret itself: no
// error shows it.
func (a *Adapter) blob(ctx context.Context, address string) ([]byte, *providers.Error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, rest.Transport(errors.New("the console's address is no URL"), false)
	}
	res, err := a.cloud.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, rest.Transport(context.Cause(ctx), true)
		}
		return nil, rest.Transport(errors.New("the console's blob could not be read"), true)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	switch {
	case err != nil:
		return nil, rest.Transport(err, true)
	case res.StatusCode == http.StatusNotFound:
		return nil, nil // nothing was written yet
	}
	return data, rest.ByStatus(rest.Answer{Status: res.StatusCode, Header: res.Header, Body: data})
}
