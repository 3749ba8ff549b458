package azure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"gpubroker/providers"
	"gpubroker/providers/rest"
)

// rule is what an answer of the cloud means.
type rule struct {
	code    providers.Code
	scope   providers.ErrScope
	outcome providers.Outcome // of a launch
}

// byCode is the error table: what ARM's codes mean
// (learn.microsoft.com/azure/azure-resource-manager/troubleshooting/common-deployment-errors,
// …/azure/virtual-machines/error-codes-spot, and bodies in testdata/errors).
var byCode = map[string]rule{
	// No room.
	"SkuNotAvailable":                       {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
	"AllocationFailed":                      {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
	"ZonalAllocationFailed":                 {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
	"OverconstrainedAllocationRequest":      {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
	"OverconstrainedZonalAllocationRequest": {providers.NoCapacity, providers.ScopeOffer, providers.NotCreated},
	// Quotas. A quota of cores is refused as OperationNotAllowed, whichever it is
	// (Azure/karpenter-provider-azure issue 192).
	"OperationNotAllowed":               {providers.QuotaExceeded, providers.ScopeFamily, providers.NotCreated},
	"QuotaExceeded":                     {providers.QuotaExceeded, providers.ScopeFamily, providers.NotCreated},
	"ResourceQuotaExceeded":             {providers.QuotaExceeded, providers.ScopeRegion, providers.NotCreated},
	"PublicIPCountLimitReached":         {providers.QuotaExceeded, providers.ScopeRegion, providers.NotCreated},
	"NetworkInterfaceCountLimitReached": {providers.QuotaExceeded, providers.ScopeRegion, providers.NotCreated},
	"VirtualNetworkCountLimitReached":   {providers.QuotaExceeded, providers.ScopeRegion, providers.NotCreated},
	"ResourceGroupQuotaExceeded":        {providers.QuotaExceeded, providers.ScopeProvider, providers.NotCreated},
	"RoleAssignmentLimitExceeded":       {providers.QuotaExceeded, providers.ScopeProvider, providers.NotCreated},
	"SubnetIsFull":                      {providers.QuotaExceeded, providers.ScopeRegion, providers.NotCreated},
	// Prices.
	"SpotPriceGreaterThanProvidedMaxPrice": {providers.PriceTooLow, providers.ScopeOffer, providers.NotCreated},
	"MaxPriceValueInvalid":                 {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	// Not for this account, or not at all.
	"NotAvailableForSubscription":                       {providers.Unsupported, providers.ScopeFamily, providers.NotCreated},
	"AzureSpotIsNotSupportedForThisVMSize":              {providers.Unsupported, providers.ScopeFamily, providers.NotCreated},
	"AzureSpotFeatureNotEnabledForSubscription":         {providers.Unsupported, providers.ScopeRegion, providers.NotCreated},
	"LocationNotAvailableForResourceType":               {providers.Unsupported, providers.ScopeRegion, providers.NotCreated},
	"LocationNotAvailableForResourceGroup":              {providers.Unsupported, providers.ScopeRegion, providers.NotCreated},
	"NoRegisteredProviderFound":                         {providers.Unsupported, providers.ScopeRegion, providers.NotCreated},
	"ResourceTypeNotSupportAvailabilityZones":           {providers.Unsupported, providers.ScopeRegion, providers.NotCreated},
	"AvailabilityZoneNotSupported":                      {providers.Unsupported, providers.ScopeRegion, providers.NotCreated},
	"ZonesNotSupported":                                 {providers.Unsupported, providers.ScopeRegion, providers.NotCreated},
	"VMSizeIsNotPermittedToEnableAcceleratedNetworking": {providers.Unsupported, providers.ScopeFamily, providers.NotCreated},
	// Pace.
	"TooManyRequests":                     {providers.RateLimited, providers.ScopeProvider, providers.NotCreated},
	"SubscriptionRequestsThrottled":       {providers.RateLimited, providers.ScopeProvider, providers.NotCreated},
	"ResourceCollectionRequestsThrottled": {providers.RateLimited, providers.ScopeProvider, providers.NotCreated},
	"OperationThrottled":                  {providers.RateLimited, providers.ScopeProvider, providers.NotCreated},
	// Credentials and permissions.
	"AuthenticationFailed":             {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"InvalidAuthenticationToken":       {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"InvalidAuthenticationTokenTenant": {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"ExpiredAuthenticationToken":       {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"AuthorizationFailed":              {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"LinkedAuthorizationFailed":        {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"RoleAssignmentUpdateNotPermitted": {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	// A subscription that may not be seen says nothing of the machines in it.
	"SubscriptionNotFound":         {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"SubscriptionNotRegistered":    {providers.Unauthorized, providers.ScopeProvider, providers.NotCreated},
	"ReadOnlyDisabledSubscription": {providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
	"DisabledSubscription":         {providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
	"SubscriptionDisabled":         {providers.NoFunds, providers.ScopeProvider, providers.NotCreated},
	// Never works as it is asked for.
	"MissingSubscriptionRegistration":      {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated},
	"InvalidSubscriptionId":                {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated},
	"RequestDisallowedByPolicy":            {providers.InvalidRequest, providers.ScopeRegion, providers.NotCreated},
	"InvalidParameter":                     {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	"BadRequest":                           {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	"InvalidRequestContent":                {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	"InvalidRequestFormat":                 {providers.InvalidRequest, providers.ScopeFamily, providers.NotCreated},
	"InvalidResourceReference":             {providers.InvalidRequest, providers.ScopeRegion, providers.NotCreated},
	"LinkedInvalidPropertyId":              {providers.InvalidRequest, providers.ScopeRegion, providers.NotCreated},
	"InvalidResourceGroup":                 {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated},
	"PlatformImageNotFound":                {providers.InvalidRequest, providers.ScopeRegion, providers.NotCreated},
	"ImageNotFound":                        {providers.InvalidRequest, providers.ScopeRegion, providers.NotCreated},
	"GalleryImageNotFound":                 {providers.InvalidRequest, providers.ScopeRegion, providers.NotCreated},
	"MarketplacePurchaseEligibilityFailed": {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated},
	"InvalidFilterInQueryString":           {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated},
	"MissingApiVersionParameter":           {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated},
	"InvalidApiVersionParameter":           {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated},
	"InvalidCreateRoleAssignmentRequest":   {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated},
	"RoleDefinitionDoesNotExist":           {providers.InvalidRequest, providers.ScopeProvider, providers.NotCreated},
	// Gone.
	"ResourceNotFound":      {providers.NotFound, providers.ScopeOffer, providers.NotCreated},
	"ResourceGroupNotFound": {providers.NotFound, providers.ScopeOffer, providers.NotCreated},
	// There already, in another shape.
	"PreconditionFailed":           {providers.Conflict, providers.ScopeOffer, providers.OutcomeUnknown},
	"PropertyChangeNotAllowed":     {providers.Conflict, providers.ScopeOffer, providers.OutcomeUnknown},
	"InvalidResourceGroupLocation": {providers.Conflict, providers.ScopeOffer, providers.OutcomeUnknown},
	"InvalidResourceLocation":      {providers.Conflict, providers.ScopeOffer, providers.OutcomeUnknown},
	"ResourceGroupBeingDeleted":    {providers.Conflict, providers.ScopeOffer, providers.OutcomeUnknown},
	// Later.
	"Conflict":                         {providers.Unavailable, providers.ScopeOffer, providers.OutcomeUnknown},
	"AnotherOperationInProgress":       {providers.Unavailable, providers.ScopeOffer, providers.OutcomeUnknown},
	"RetryableError":                   {providers.Unavailable, providers.ScopeOffer, providers.OutcomeUnknown},
	"ReferencedResourceNotProvisioned": {providers.Unavailable, providers.ScopeOffer, providers.OutcomeUnknown},
	"PrincipalNotFound":                {providers.Unavailable, providers.ScopeOffer, providers.OutcomeUnknown},
	"ScopeLocked":                      {providers.Unavailable, providers.ScopeOffer, providers.OutcomeUnknown},
	"ResourceGroupDeletionBlocked":     {providers.Unavailable, providers.ScopeOffer, providers.OutcomeUnknown},
	"InternalServerError":              {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
	"InternalError":                    {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
	"InternalOperationError":           {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
	"InternalExecutionError":           {providers.Unavailable, providers.ScopeOffer, providers.OutcomeUnknown},
	"ServiceUnavailable":               {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
	"ServerTimeout":                    {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
	"GatewayTimeout":                   {providers.Unavailable, providers.ScopeProvider, providers.OutcomeUnknown},
}

// armError is the error of an answer.
type armError struct {
	Code    string     `json:"code"`
	Message string     `json:"message"`
	Details []armError `json:"details"`
}

// known finds the first code of the table, in an error or in what it wraps.
func (e armError) known() (rule, bool) {
	if r, ok := byCode[e.Code]; ok {
		return r, true
	}
	for _, d := range e.Details {
		if r, ok := d.known(); ok {
			return r, true
		}
	}
	return rule{}, false
}

// judge says what an answer that is a failure means: its code first, and what has
// none or an unheard-of one by its status, as far as that tells.
func judge(a rest.Answer) *providers.Error {
	e := rest.ByStatus(a)
	if e == nil { // the last answer of an operation that failed, or an error in a success
		e = &providers.Error{Code: providers.Unknown, Scope: providers.ScopeOffer, Outcome: providers.OutcomeUnknown, RetryAfter: rest.RetryAfter(a.Header)}
	}
	var doc struct {
		Error *armError `json:"error"`
		armError
	}
	if err := json.Unmarshal(a.Body, &doc); err != nil {
		return e
	}
	said := doc.Error
	if said == nil {
		said = &doc.armError
	}
	if said.Code == "" {
		return e
	}
	e.Message = said.Code + ": " + said.Message
	r, ok := said.known()
	switch {
	case ok:
		e.Code, e.Scope, e.Outcome = r.code, r.scope, r.outcome
	case a.Status == http.StatusUnauthorized, a.Status == http.StatusForbidden, a.Status == http.StatusTooManyRequests, a.Status >= 500:
		// the status tells enough
	default:
		e.Code, e.Scope, e.Outcome = providers.Unknown, providers.ScopeOffer, providers.OutcomeUnknown
	}
	return e
}

// failure turns what a call of the SDK failed with into an error of the contract.
// nil stays nil.
func (a *Adapter) failure(ctx context.Context, op, target string, err error) error {
	if err == nil {
		return nil
	}
	return a.complete(op, target, a.understand(ctx, err))
}

func (a *Adapter) understand(ctx context.Context, err error) *providers.Error {
	if e, ok := errors.AsType[*providers.Error](err); ok {
		return e
	}
	if ctx.Err() != nil {
		return rest.Transport(context.Cause(ctx), true)
	}
	if said, ok := errors.AsType[*azcore.ResponseError](err); ok && said.RawResponse != nil {
		return judge(answer(said.RawResponse))
	}
	if failed, ok := errors.AsType[*azidentity.AuthenticationFailedError](err); ok {
		return notSignedIn(failed)
	}
	if _, ok := errors.AsType[interface {
		error
		NonRetriable()
	}](err); ok { // the library itself refused: no credential was found, or it may not be sent there
		return &providers.Error{Code: providers.Unauthorized, Scope: providers.ScopeProvider, Outcome: providers.NotCreated, Message: "set tenant, client_id and client_secret, or sign in where the broker runs: " + err.Error()}
	}
	return rest.Transport(err, true)
}

// notSignedIn is a failure to get a token: the call itself was never sent.
func notSignedIn(failed *azidentity.AuthenticationFailedError) *providers.Error {
	e := &providers.Error{Code: providers.Unavailable, Scope: providers.ScopeProvider, Message: "sign-in: no answer"}
	if failed.RawResponse != nil {
		got := answer(failed.RawResponse)
		var doc struct {
			Error       string `json:"error"`
			Description string `json:"error_description"`
		}
		if said := rest.ByStatus(got); said != nil {
			e = said
		}
		if json.Unmarshal(got.Body, &doc) == nil && doc.Error != "" {
			e.Message = "sign-in: " + doc.Error + ": " + doc.Description
		}
		if got.Status == http.StatusBadRequest {
			e.Code = providers.Unauthorized // invalid_client and its like
		}
		e.Scope = providers.ScopeProvider
	}
	e.Outcome = providers.NotCreated
	return e
}

// answer reads what the SDK has kept of an answer.
func answer(res *http.Response) rest.Answer {
	out := rest.Answer{Status: res.StatusCode, Header: res.Header}
	if res.Body != nil {
		out.Body, _ = io.ReadAll(io.LimitReader(res.Body, maxAnswer)) // a part tells what it tells
		_ = res.Body.Close()
	}
	return out
}

// complete fills in what is the same for every error.
func (a *Adapter) complete(op, target string, e *providers.Error) *providers.Error {
	e.Provider, e.Op, e.Target = a.name, op, target
	if op != "launch" {
		e.Outcome = ""
	} else if e.Outcome == "" {
		e.Outcome = providers.OutcomeUnknown
	}
	if e.Scope == "" {
		e.Scope = providers.Reactions()[e.Code].Scope
	}
	e.Message = a.line(e.Message)
	return e
}

// maxMessage is how much of the cloud's words is kept, in bytes.
const maxMessage = 300

// line makes the cloud's words one line without secrets.
func (a *Adapter) line(s string) string {
	for _, secret := range a.secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[hidden]")
		}
	}
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return s
}

// errorf is an error of the adapter itself.
func (a *Adapter) errorf(op, target string, code providers.Code, outcome providers.Outcome, format string, args ...any) *providers.Error {
	return a.complete(op, target, &providers.Error{Code: code, Outcome: outcome, Message: fmt.Sprintf(format, args...)})
}
