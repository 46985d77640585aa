//! One number for a sequence of frames: XXH3, 64 bits, over all of them in order.
//!
//! It covers the number, the size and the pixels of each frame, so a frame that is missing, out of
//! order or of another shape changes the result.

use xxhash_rust::xxh3::Xxh3;

use crate::Frame;

/// The checksum of the frames so far.
#[derive(Clone, Default)]
pub struct Checksum {
    hasher: Xxh3,
}

impl Checksum {
    /// Starts with no frames.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a frame.
    pub fn add(&mut self, frame: &Frame) {
        let (width, height) = (frame.size.width() as u64, frame.size.height() as u64);
        for word in [frame.number, width, height] {
            self.hasher.update(&word.to_le_bytes());
        }
        self.hasher.update(&frame.pixels);
    }

    /// Returns the checksum of all frames so far.
    pub fn value(&self) -> u64 {
        self.hasher.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Size;

    fn frame(number: u64, width: u64, height: u64, pixels: &[u8]) -> Frame {
        Frame {
            number,
            size: Size::new(width, height).unwrap(),
            pixels: pixels.to_vec(),
        }
    }

    fn value(frames: &[Frame]) -> u64 {
        let mut checksum = Checksum::new();
        frames.iter().for_each(|frame| checksum.add(frame));
        checksum.value()
    }

    #[test]
    fn every_difference_counts() {
        let (one, two) = (frame(0, 2, 1, &[1, 2]), frame(1, 2, 1, &[1, 3]));
        let whole = value(&[one.clone(), two.clone()]);
        assert_eq!(whole, value(&[one.clone(), two.clone()]));
        for other in [
            vec![],
            vec![one.clone()],
            vec![two.clone(), one.clone()],
            vec![one.clone(), frame(2, 2, 1, &[1, 3])],
            vec![one.clone(), frame(1, 1, 2, &[1, 3])],
            vec![one.clone(), frame(1, 2, 1, &[1, 4])],
        ] {
            assert_ne!(whole, value(&other));
        }
    }
}
