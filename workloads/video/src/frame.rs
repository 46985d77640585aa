//! Frames, and the limit of their size.

use crate::Error;

/// The largest width and the largest height. UHD-2 has 7680 x 4320.
pub const MAX_SIDE: usize = 8192;

/// Width and height of a frame: at least 1 x 1 and at most [`MAX_SIDE`] x [`MAX_SIDE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    width: usize,
    height: usize,
}

impl Size {
    /// 1920 x 1080.
    pub const HD: Size = Size {
        width: 1920,
        height: 1080,
    };
    /// 3840 x 2160.
    pub const UHD1: Size = Size {
        width: 3840,
        height: 2160,
    };
    /// 7680 x 4320.
    pub const UHD2: Size = Size {
        width: 7680,
        height: 4320,
    };

    /// Checks a size. Fails with [`Error::FrameSize`] if a side is zero or above the limit.
    pub fn new(width: u64, height: u64) -> Result<Self, Error> {
        let side = |length| {
            let length = usize::try_from(length).ok()?;
            (1..=MAX_SIDE).contains(&length).then_some(length)
        };
        match (side(width), side(height)) {
            (Some(width), Some(height)) => Ok(Self { width, height }),
            _ => Err(Error::FrameSize { width, height }),
        }
    }

    /// Pixels per row.
    pub fn width(self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(self) -> usize {
        self.height
    }

    /// Pixels of a frame, which is also its length in bytes.
    pub fn pixels(self) -> usize {
        self.width * self.height
    }
}

/// A grey frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its place in the video, counted from 0.
    pub number: u64,
    /// Its width and height.
    pub size: Size,
    /// One byte per pixel, row by row. It has exactly `size.pixels()` bytes.
    pub pixels: Vec<u8>,
}

impl Frame {
    /// Returns a black frame with the number 0.
    pub fn black(size: Size) -> Self {
        Self {
            number: 0,
            size,
            pixels: vec![0; size.pixels()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_limits() {
        assert_eq!(Size::new(1, 1).unwrap().pixels(), 1);
        assert_eq!(Size::new(8192, 8192).unwrap().pixels(), 1 << 26);
        for (width, height) in [(0, 1), (1, 0), (8193, 1), (1, 8193), (u64::MAX, u64::MAX)] {
            assert!(matches!(
                Size::new(width, height),
                Err(Error::FrameSize { .. })
            ));
        }
    }
}
