package images

import (
	"image"
	"image/color"
	"image/draw"
)

// scale makes the image fit into a square of the given side, each pixel the mean of those it stands for. A smaller image
// keeps its size.
func scale(from image.Image, side int) *image.RGBA64 {
	b := from.Bounds()
	w, h := fit(b.Dx(), b.Dy(), side)
	pixels, ok := from.(image.RGBA64Image)
	if !ok {
		all := image.NewRGBA64(b)
		draw.Draw(all, b, from, b.Min, draw.Src)
		pixels = all
	}
	to := image.NewRGBA64(image.Rect(0, 0, w, h))
	for y := range h {
		top, bottom := b.Min.Y+y*b.Dy()/h, b.Min.Y+(y+1)*b.Dy()/h
		for x := range w {
			left, right := b.Min.X+x*b.Dx()/w, b.Min.X+(x+1)*b.Dx()/w
			to.SetRGBA64(x, y, mean(pixels, image.Rect(left, top, right, bottom)))
		}
	}
	return to
}

// fit is the size of a w × h image in a square of the given side, never larger than it is and never without pixels.
func fit(w, h, side int) (int, int) {
	switch {
	case w <= side && h <= side:
		return w, h
	case w >= h:
		return side, max(h*side/w, 1)
	}
	return max(w*side/h, 1), side
}

// mean is over colours multiplied by their opacity, as RGBA64 has them, so that what is transparent does not count.
func mean(m image.RGBA64Image, box image.Rectangle) color.RGBA64 {
	var r, g, b, a uint64
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			c := m.RGBA64At(x, y)
			r, g, b, a = r+uint64(c.R), g+uint64(c.G), b+uint64(c.B), a+uint64(c.A)
		}
	}
	n := uint64(box.Dx() * box.Dy())
	return color.RGBA64{R: uint16(r / n), G: uint16(g / n), B: uint16(b / n), A: uint16(a / n)}
}
