package images

import (
	"bytes"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"strings"
	"testing"
)

func TestAThumbnailFitsAndKeepsItsShape(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ w, h, wantW, wantH int }{
		{64, 64, 64, 64}, {10, 3, 10, 3}, {128, 64, 64, 32}, {64, 128, 32, 64}, {65, 65, 64, 64}, {1000, 1, 64, 1}, {1, 100_000, 1, 64},
	} {
		if w, h := fit(c.w, c.h, 64); w != c.wantW || h != c.wantH {
			t.Errorf("%d × %d becomes %d × %d, want %d × %d", c.w, c.h, w, h, c.wantW, c.wantH)
		}
	}
}

func TestAPixelIsTheMeanOfThoseItStandsFor(t *testing.T) {
	t.Parallel()
	// A board of black and white pixels, beginning elsewhere than at 0.
	board := image.NewGray(image.Rect(5, 7, 5+128, 7+128))
	for y := 7; y < 7+128; y++ {
		for x := 5; x < 5+128; x++ {
			board.SetGray(x, y, color.Gray{Y: uint8((x + y) % 2 * 255)})
		}
	}
	small := scale(board, 64)
	for y := range 64 {
		for x := range 64 {
			if got := small.RGBA64At(x, y); got.R != 0x7fff || got.A != 0xffff {
				t.Fatalf("pixel %d,%d is %v, want an opaque mid grey", x, y, got)
			}
		}
	}
}

func TestTransparentPixelsGiveNoColour(t *testing.T) {
	t.Parallel()
	m := image.NewNRGBA(image.Rect(0, 0, 128, 128))
	draw.Draw(m, m.Bounds(), image.NewUniform(color.NRGBA{R: 255, A: 255}), image.Point{}, draw.Src)
	for i := 0; i < 128; i++ {
		m.SetNRGBA(i, 0, color.NRGBA{G: 255}) // green, but nothing of it is to be seen
	}
	if got := scale(m, 64).RGBA64At(3, 0); got.G != 0 || got.R != got.A {
		t.Errorf("the pixel is %v, want red at half opacity", got)
	}
}

func TestAnImageThatAsksForTooMuchMemoryIsRefused(t *testing.T) {
	t.Parallel()
	var file bytes.Buffer
	if err := png.Encode(&file, image.NewGray(image.Rect(0, 0, 1, 1))); err != nil {
		t.Fatal(err)
	}
	data := file.Bytes()
	copy(data[16:], "\x7f\xff\xff\xff\x7f\xff\xff\xff") // width and height; the checksum no longer fits, which is found later
	_, err := decode(data)
	if err == nil || !strings.Contains(err.Error(), "checksum") && !strings.Contains(err.Error(), "too many") && !strings.Contains(err.Error(), "dimension") {
		t.Errorf("err = %v", err)
	}
}

func TestTheFileNameHoldsAnyKey(t *testing.T) {
	t.Parallel()
	a, b := FileName("1/s5:a/b.png"), FileName("1/s5:a/B.png")
	if a == b || strings.ContainsAny(a, `/\:`) {
		t.Errorf("%q, %q", a, b)
	}
}
