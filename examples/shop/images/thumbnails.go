// Package images is the part of the shop that makes thumbnails.
package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	_ "image/gif" // the three forms that are decoded
	_ "image/jpeg"
	"image/png"
	"io"
	"os"
	"path/filepath"

	"github.com/jobgen-go/jobgen/jobs"
)

//go:generate go run github.com/jobgen-go/jobgen/cmd/jobgen .

// Thumbnail makes a small PNG of an image.
//
//job:kind images.thumbnail queue=images attempts=5 timeout=1m result=Picture
//job:key Path for=24h
type Thumbnail struct {
	// Path is relative to the folder of images, with slashes.
	Path string `json:"path"`
}

// Picture is what making a thumbnail gives.
type Picture struct {
	File   string `json:"file"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
}

const (
	// Side is the longest side of a thumbnail, in pixels.
	Side = 64

	// MaxPixels is the largest image that is decoded: a few bytes of file can ask for all the memory there is.
	MaxPixels = 100 << 20

	maxBytes = 64 << 20
)

// Studio handles the jobs of this package.
type Studio struct {
	// From is the folder of images, To the folder for thumbnails, which must have a folder "unfinished" in it.
	From, To string
	// Started is told of each handler that starts.
	Started func(jobs.Info)
	// Work is what there is to a thumbnail beyond its file.
	Work func(context.Context) error
}

// Thumbnail may run more than once, since its effect is not in the database: it may have written the file when its
// process is killed, and not have said so. So the file is named by the job's key and put in its place in one step; a
// second run replaces it by the same. An image that cannot be decoded will not get better: its job is dead at once. What
// went wrong in reading the file is tried again.
func (s *Studio) Thumbnail(ctx context.Context, job *jobs.Job[Thumbnail]) (Picture, error) {
	s.Started(job.Info)
	data, err := s.read(job.Payload.Path)
	if err != nil {
		return Picture{}, err
	}
	full, err := decode(data)
	if err != nil {
		return Picture{}, jobs.Permanent(fmt.Errorf("%s cannot be decoded: %w", job.Payload.Path, err))
	}
	small := scale(full, Side)
	if err := s.Work(ctx); err != nil {
		return Picture{}, err
	}
	p := Picture{File: FileName(job.Key()), Width: small.Bounds().Dx(), Height: small.Bounds().Dy()}
	return p, s.store(p.File, small)
}

// FileName is where the thumbnail of the job with this key is, in Studio.To.
func FileName(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8]) + ".png"
}

func (s *Studio) read(path string) ([]byte, error) {
	root, err := os.OpenRoot(s.From) // a path out of a job leads nowhere else
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(filepath.FromSlash(path))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, err
	}
	return data, nil
}

func decode(data []byte) (image.Image, error) {
	if len(data) > maxBytes {
		return nil, fmt.Errorf("the file is larger than %d MiB", maxBytes>>20)
	}
	config, _, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if config.Width > MaxPixels/max(config.Height, 1) {
		return nil, fmt.Errorf("%d × %d pixels are too many", config.Width, config.Height)
	}
	full, _, err := image.Decode(bytes.NewReader(data))
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("the file is cut short: %w", err)
	case err == nil && full.Bounds().Empty():
		err = errors.New("the image has no pixels")
	}
	return full, err
}

// store writes the file beside its place and moves it there when it is complete.
func (s *Studio) store(name string, m image.Image) (err error) {
	f, err := os.CreateTemp(filepath.Join(s.To, "unfinished"), name)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if err := errors.Join(png.Encode(f, m), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(s.To, name))
}
