package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"gpubroker/internal/durable"
)

// writeWhole replaces a file so that after any crash it holds the old or the new
// content. Only the owner may read it.
func writeWhole(path string, data []byte) error {
	if _, err := durable.WriteFile(path, data); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	return nil
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("agent: write %s: %w", path, err)
	}
	return writeWhole(path, append(data, '\n'))
}

// readJSON reports whether the file is there. One that cannot be read is an
// error: to take it for a missing one would forget what it holds.
func readJSON(path string, v any) (bool, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return false, fmt.Errorf("agent: read %s: %w; remove it to begin anew", path, err)
	}
	return true, nil
}
