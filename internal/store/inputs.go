package store

import (
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"gpubroker/queue"
)

// PutInputs stores chunks of a job's inputs, each compressed by itself.
func (s *Store) PutInputs(ctx context.Context, chunks []*queue.Inputs) error {
	packed := make([][]byte, len(chunks))
	var p packer
	for i, c := range chunks {
		var err error
		if packed[i], err = p.pack(c.Values); err != nil {
			return s.wrap("inputs", fmt.Errorf("chunk %d of job %s: %w", c.Chunk, c.Job, err))
		}
	}
	return s.write(ctx, "inputs", 0, func(tx *sql.Tx) (int64, error) {
		put, err := tx.PrepareContext(ctx, s.q.text("inputs.put"))
		if err != nil {
			return 0, err
		}
		defer put.Close()
		now := micros(time.Now())
		for i, c := range chunks {
			if _, err := put.ExecContext(ctx, c.Job, c.Chunk, now, packed[i]); err != nil {
				return 0, fmt.Errorf("chunk %d of job %s: %w", c.Chunk, c.Job, err)
			}
		}
		return 0, nil
	})
}

// Inputs returns a chunk, or [queue.ErrNotFound].
func (s *Store) Inputs(ctx context.Context, job string, chunk int) (*queue.Inputs, error) {
	var data []byte
	err := s.reader.QueryRowContext(ctx, s.q.text("inputs.get"), job, chunk).Scan(&data)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, fmt.Errorf("%w: chunk %d of the inputs of job %s", queue.ErrNotFound, chunk, job)
	}
	if err != nil {
		return nil, s.wrap("inputs", err)
	}
	values, err := unpack(data)
	if err != nil {
		return nil, fmt.Errorf("%w: chunk %d of the inputs of job %s in %s: %w", queue.ErrDamaged, chunk, job, s.where, err)
	}
	return &queue.Inputs{Job: job, Chunk: chunk, Values: values}, nil
}

// packer writes values as gzip, whose checksum guards them, over each value's
// length (a varint) and bytes. Values may be any bytes: file names need not be
// UTF-8.
type packer struct {
	zip *gzip.Writer
	out bytes.Buffer
	in  []byte
}

func (p *packer) pack(values []string) ([]byte, error) {
	p.out.Reset()
	p.in = p.in[:0]
	for _, v := range values {
		p.in = binary.AppendUvarint(p.in, uint64(len(v)))
		p.in = append(p.in, v...)
	}
	if p.zip == nil {
		p.zip = gzip.NewWriter(&p.out)
	}
	p.zip.Reset(&p.out)
	if _, err := p.zip.Write(p.in); err != nil {
		return nil, err
	}
	if err := p.zip.Close(); err != nil {
		return nil, err
	}
	return bytes.Clone(p.out.Bytes()), nil
}

func unpack(data []byte) ([]string, error) {
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(zip)
	if err != nil {
		return nil, err
	}
	values := make([]string, 0, queue.ChunkSize)
	text := string(raw) // the values are parts of one string
	for len(text) > 0 {
		n, w := binary.Uvarint(raw)
		if w <= 0 || n > uint64(len(text)-w) {
			return nil, errors.New("a value is cut short")
		}
		values = append(values, text[w:w+int(n)])
		text, raw = text[w+int(n):], raw[w+int(n):]
	}
	return values, nil
}
