//! Frames made by arithmetic: a gradient, a band of noise, and discs that move over them.
//!
//! A frame is a function of size, seed and number, so any process can make any of them. Rows are
//! filled, not computed pixel by pixel, which makes a frame about as cheap as a copy.

use crate::{Frame, Size};

/// Discs in each frame.
const DISCS: u64 = 7;
/// The band of noise takes one row in this many, and at least one.
const BAND: usize = 24;

/// Makes frames.
#[derive(Clone, Debug)]
pub struct Generator {
    size: Size,
    seed: u64,
    /// The gradient of the uppermost row.
    ramp: Vec<u8>,
}

/// A disc in one frame.
struct Disc {
    x: usize,
    y: usize,
    radius: usize,
    shade: u8,
}

impl Generator {
    /// Prepares frames of one size. Other seeds give other videos.
    pub fn new(size: Size, seed: u64) -> Self {
        let ramp = (0..size.width()).map(|x| (x * 112 / size.width()) as u8);
        Self {
            size,
            seed,
            ramp: ramp.collect(),
        }
    }

    /// Makes the frame `number` in `frame`, whose memory is used again.
    pub fn make(&self, number: u64, frame: &mut Frame) {
        frame.number = number;
        frame.size = self.size;
        frame.pixels.resize(self.size.pixels(), 0);
        let (width, height) = (self.size.width(), self.size.height());
        for (y, row) in frame.pixels.chunks_exact_mut(width).enumerate() {
            let base = (y * 112 / height) as u8;
            for (pixel, ramp) in row.iter_mut().zip(&self.ramp) {
                *pixel = ramp + base;
            }
        }
        for index in 0..DISCS {
            self.disc(index, number).draw(frame);
        }
        self.draw_noise(frame);
    }

    /// Returns a disc, which moves along a straight line and comes back at the opposite edge.
    fn disc(&self, index: u64, number: u64) -> Disc {
        let random = mix(self.seed ^ mix(index + 1));
        let along = |side: usize, random: u64| {
            let side = side as u64;
            let speed = 1 + (random >> 16) % (side / 64 + 1);
            (((random & 0xffff) + speed * (number % side)) % side) as usize
        };
        let (width, height) = (self.size.width(), self.size.height());
        let radius = width.min(height) * (6 + index as usize) / 96;
        Disc {
            x: along(width, random & 0xffff_ffff),
            y: along(height, random >> 32),
            radius,
            shade: mix(random) as u8,
        }
    }

    /// Draws the band of noise. It depends on the number, so that no two frames are the same.
    fn draw_noise(&self, frame: &mut Frame) {
        let (width, height) = (self.size.width(), self.size.height());
        let rows = (height / BAND).max(1);
        let first = (height - rows) / 2;
        let mut state = mix(self.seed ^ mix(!frame.number));
        for bytes in frame.pixels[first * width..][..rows * width].chunks_mut(8) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            bytes.copy_from_slice(&mix(state).to_le_bytes()[..bytes.len()]);
        }
    }
}

impl Disc {
    fn draw(&self, frame: &mut Frame) {
        let (width, height) = (frame.size.width(), frame.size.height());
        let rows = self.y.saturating_sub(self.radius)..(self.y + self.radius + 1).min(height);
        for y in rows {
            let up = y.abs_diff(self.y);
            let half = (self.radius * self.radius - up * up).isqrt();
            let columns = self.x.saturating_sub(half)..(self.x + half + 1).min(width);
            frame.pixels[y * width..][columns].fill(self.shade);
        }
    }
}

/// The output function of SplitMix64.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_depends_on_all_that_names_it() {
        let make = |width, height, seed, number| {
            let size = Size::new(width, height).unwrap();
            // What was in the memory before does not matter.
            let mut frame = Frame::black(Size::new(9, 9).unwrap());
            frame.pixels.fill(200);
            Generator::new(size, seed).make(number, &mut frame);
            assert_eq!((frame.number, frame.size), (number, size));
            frame.pixels
        };
        let one = make(64, 48, 1, 5);
        assert_eq!(one.len(), 64 * 48);
        assert_eq!(one, make(64, 48, 1, 5));
        assert_ne!(one, make(64, 48, 1, 6));
        assert_ne!(one, make(64, 48, 2, 5));
        assert_ne!(one, make(48, 64, 1, 5));
    }

    #[test]
    fn any_size_and_number_will_do() {
        for (width, height) in [(1, 1), (1, 50), (50, 1), (2, 3), (8192, 1), (17, 5)] {
            let size = Size::new(width, height).unwrap();
            let mut frame = Frame::black(size);
            for number in [0, 1, 1000, u64::MAX] {
                Generator::new(size, u64::MAX).make(number, &mut frame);
                assert_eq!(frame.pixels.len(), size.pixels());
            }
        }
    }
}
