// Tiles renders an image tile by tile with integer arithmetic. Each tile begins
// from a digest of all tiles before it, so that the result depends on every step
// taken: a step that is lost, or done twice, gives another image.
//
//	tiles --tiles 400 --work 2000000 --out image.pgm
//
// It saves under $GPUBROKER_CHECKPOINT_DIR, each save whole by a rename, goes on
// from the newest one there, and on SIGTERM saves and exits with code 75. It is an
// example of a program for gpubroker, and knows nothing of it but the environment.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Exit codes.
const (
	exitFailed  = 1
	exitUsage   = 2
	exitStopped = 75 // EX_TEMPFAIL of sysexits.h: saved, and to be run again
)

// side is the width and height of a tile in pixels.
const side = 16

// keep is how many saves stay in the folder.
const keep = 2

type job struct {
	tiles, work int
	out         string
	dir         string // of saves; "" saves nothing
	every       time.Duration
	saveNow     string // a file that asks for a save by being there
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	code, err := run(ctx, os.Args[1:], os.Getenv, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tiles:", err)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string, getenv func(string) string, out io.Writer) (int, error) {
	j := job{dir: getenv("GPUBROKER_CHECKPOINT_DIR"), every: 5 * time.Second, saveNow: getenv("GPUBROKER_SAVE_NOW")}
	flags := flag.NewFlagSet("tiles", flag.ContinueOnError)
	flags.IntVar(&j.tiles, "tiles", 400, "number of tiles")
	flags.IntVar(&j.work, "work", 1_000_000, "steps per tile")
	flags.StringVar(&j.out, "out", "image.pgm", "`file` of the image")
	if err := flags.Parse(args); err != nil {
		return exitUsage, nil //nolint:nilerr // the flag package has said it
	}
	if j.tiles < 1 || j.work < 1 || flags.NArg() > 0 {
		return exitUsage, errors.New("want --tiles and --work above 0, and nothing else")
	}
	if text := getenv("GPUBROKER_CHECKPOINT_INTERVAL"); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || seconds < 0 {
			return exitUsage, fmt.Errorf("GPUBROKER_CHECKPOINT_INTERVAL=%q is no number of seconds", text)
		}
		if seconds > 0 {
			j.every = time.Duration(seconds * float64(time.Second))
		}
	}
	return j.render(ctx, out)
}

// state is everything that the work depends on: what a save holds.
type state struct {
	chain  [sha256.Size]byte // digest of all tiles so far
	pixels []byte            // side × side per tile
}

func (s *state) done() int { return len(s.pixels) / (side * side) }

// tile renders the next tile: an integer walk that begins from the chain, and
// that then becomes part of it.
func (s *state) tile(ctx context.Context, work int) error {
	a := binary.LittleEndian.Uint64(s.chain[:])
	b := binary.LittleEndian.Uint64(s.chain[8:]) | 1
	var heat [side * side]uint32
	for i := range work {
		if i&0xffff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		a ^= a << 13
		a ^= a >> 7
		a ^= a << 17
		b = b*6364136223846793005 + a | 1
		heat[(a^b>>32)%(side*side)] += uint32(b >> 60)
	}
	pixels := make([]byte, side*side)
	for i, h := range heat {
		pixels[i] = byte(h ^ h>>8)
	}
	s.pixels = append(s.pixels, pixels...)
	sum := sha256.New()
	sum.Write(s.chain[:])
	sum.Write(pixels)
	sum.Sum(s.chain[:0])
	return nil
}

func (j *job) render(ctx context.Context, out io.Writer) (int, error) {
	s, from, err := j.load()
	if err != nil {
		return exitFailed, err
	}
	if from != "" {
		fmt.Fprintf(out, "resumed from %s\n", from)
	}
	for saved := time.Now(); s.done() < j.tiles; {
		err := s.tile(ctx, j.work)
		if err != nil { // asked to stop: the tile that was begun is left out
			if err := j.save(s); err != nil {
				return exitFailed, err
			}
			fmt.Fprintf(out, "stopped at tile %d/%d\n", s.done(), j.tiles)
			return exitStopped, nil
		}
		fmt.Fprintf(out, "tile %d/%d\n", s.done(), j.tiles)
		if s.done() < j.tiles && (time.Since(saved) >= j.every || j.asked()) {
			if err := j.save(s); err != nil {
				return exitFailed, err
			}
			saved = time.Now()
		}
	}
	head := fmt.Sprintf("P5\n# chain %s\n%d %d\n255\n", hex.EncodeToString(s.chain[:]), side, side*j.tiles)
	if err := writeWhole(j.out, append([]byte(head), s.pixels...)); err != nil {
		return exitFailed, err
	}
	fmt.Fprintf(out, "done: %s\n", hex.EncodeToString(s.chain[:]))
	return 0, nil
}

// asked reports whether a save is wanted now, and takes the wish away.
func (j *job) asked() bool { return j.saveNow != "" && os.Remove(j.saveNow) == nil }

const saveSuffix = ".save"

func saveName(done int) string { return fmt.Sprintf("tile-%08d%s", done, saveSuffix) }

// save writes a save and removes older ones.
func (j *job) save(s *state) error {
	if j.dir == "" {
		return nil
	}
	data := append(append([]byte(nil), s.chain[:]...), s.pixels...)
	if err := writeWhole(filepath.Join(j.dir, saveName(s.done())), data); err != nil {
		return err
	}
	names, err := j.saves()
	if err != nil {
		return err
	}
	for len(names) > keep {
		if err := os.Remove(filepath.Join(j.dir, names[0])); err != nil {
			return err
		}
		names = names[1:]
	}
	return nil
}

// saves lists the saves, oldest first.
func (j *job) saves() ([]string, error) {
	entries, err := os.ReadDir(j.dir) // sorted by name
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), saveSuffix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// load returns the state of the newest save, or the beginning.
func (j *job) load() (*state, string, error) {
	first := &state{chain: sha256.Sum256(fmt.Appendf(nil, "tiles %d %d", j.tiles, j.work))}
	if j.dir == "" {
		return first, "", nil
	}
	names, err := j.saves()
	if err != nil || len(names) == 0 {
		return first, "", err
	}
	newest := names[len(names)-1]
	data, err := os.ReadFile(filepath.Join(j.dir, newest))
	if err != nil {
		return nil, "", err
	}
	s := &state{}
	if n := copy(s.chain[:], data); n < len(s.chain) || (len(data)-n)%(side*side) != 0 {
		return nil, "", fmt.Errorf("%s is not whole: %d bytes", newest, len(data))
	}
	s.pixels = data[len(s.chain):]
	if newest != saveName(s.done()) || s.done() > j.tiles {
		return nil, "", fmt.Errorf("%s holds %d tiles of %d", newest, s.done(), j.tiles)
	}
	return s, newest, nil
}

// writeWhole makes a file appear whole or not at all.
func writeWhole(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "tmp-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
