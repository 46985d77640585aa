//! Workers that are as fast as the boards in Table 1 of the S-DSM paper (Cudennec and Trabelsi,
//! 2020).
//!
//! A worker that plays a board runs the real kernel, and then sleeps until the board would have
//! been done. A worker that sleeps uses no processor, so two cores can play eight boards.
//!
//! # Which of the times are published
//!
//! | figure | HD | UHD-1 | UHD-2 |
//! |---|---|---|---|
//! | frames of the clip, N (published) | 1306 | 1306 | 1306 |
//! | alpha, the frames of the slowest board in an ideal run (published) | 60.88 | 50.56 | 53.03 |
//! | the time of an ideal run (published) | 20.8 s | 61.3 s | 247.1 s |
//! | a frame on the slowest board (follows: time / alpha) | 0.3417 s | 1.2124 s | 4.660 s |
//! | the sum of the speeds, slowest board = 1 (follows: N / alpha) | 21.45 | 25.83 | 24.63 |
//! | a frame on the i7 (published for HD) | 0.041 s | chosen | chosen |
//! | the speeds of the other boards, but TX2 | chosen | chosen | chosen |
//! | the speed of TX2 | follows | follows | follows |
//!
//! The chosen speeds are plausible ones of such boards; that of TX2 is what remains, so that the
//! sum is the published one. So the ideal time, and the work of all workers together, are those of
//! the paper. How many frames an ideal run gives to the slowest board is, too; for the boards
//! between it and the i7, it follows from the chosen speeds. Frames of other sizes take as long as
//! those of HD, in proportion to their pixels.

use crate::Size;
use std::time::Duration;

/// The frames of the paper's clip.
pub const FRAMES: u64 = 1306;

/// The boards, by the rank of the worker that plays them.
pub const TABLE: [Board; 8] = [
    Board::I7,
    Board::Tx2,
    Board::Kirin,
    Board::Kirin,
    Board::Xu4,
    Board::Xu4,
    Board::Xu3,
    Board::Rpi,
];

/// A kind of boards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Board {
    /// The gateway: a processor of a desktop.
    I7,
    /// Nvidia Jetson TX2.
    Tx2,
    /// HiSilicon Kirin.
    Kirin,
    /// Odroid XU4.
    Xu4,
    /// Odroid XU3.
    Xu3,
    /// Raspberry Pi 3 B+, the slowest one.
    Rpi,
}

/// What is known of frames of one size.
struct Known {
    size: Size,
    /// The time of an ideal run.
    ideal: f64,
    /// The frames of the slowest board in it.
    alpha: f64,
    /// The speeds of i7, Kirin, XU4, XU3 as multiples of the slowest board's.
    speeds: [f64; 4],
}

const KNOWN: [Known; 3] = [
    Known {
        size: Size::HD,
        ideal: 20.8,
        alpha: 60.88,
        // That of the i7: a frame takes 41 ms.
        speeds: [20.8 / 60.88 / 0.041, 2.6, 1.5, 1.4],
    },
    Known {
        size: Size::UHD1,
        ideal: 61.3,
        alpha: 50.56,
        speeds: [9.6, 3.2, 1.8, 1.7],
    },
    Known {
        size: Size::UHD2,
        ideal: 247.1,
        alpha: 53.03,
        speeds: [9.0, 3.0, 1.7, 1.6],
    },
];

impl Known {
    /// Returns the speed of a board.
    fn speed(&self, board: Board) -> f64 {
        let [i7, kirin, xu4, xu3] = self.speeds;
        match board {
            Board::I7 => i7,
            Board::Tx2 => {
                let others = TABLE.iter().filter(|other| **other != Board::Tx2);
                let others: f64 = others.map(|other| self.speed(*other)).sum();
                FRAMES as f64 / self.alpha - others
            }
            Board::Kirin => kirin,
            Board::Xu4 => xu4,
            Board::Xu3 => xu3,
            Board::Rpi => 1.0,
        }
    }
}

impl Board {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Board::I7 => "i7",
            Board::Tx2 => "TX2",
            Board::Kirin => "Kirin",
            Board::Xu4 => "XU4",
            Board::Xu3 => "XU3",
            Board::Rpi => "RPI 3B+",
        }
    }

    /// Returns how long it takes for a frame.
    pub fn needs(self, size: Size) -> Duration {
        let known = KNOWN.iter().find(|known| known.size == size);
        let scale = match known {
            Some(_) => 1.0,
            None => size.pixels() as f64 / Size::HD.pixels() as f64,
        };
        let known = known.unwrap_or(&KNOWN[0]);
        let slowest = known.ideal / known.alpha;
        Duration::from_secs_f64(scale * slowest / known.speed(self))
    }

    /// Returns its part of the speed of all boards together.
    pub fn share(self, size: Size) -> f64 {
        let speed = |board: Board| 1.0 / board.needs(size).as_secs_f64();
        let all: f64 = TABLE.iter().map(|board| speed(*board)).sum();
        speed(self) / all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sums_are_reproduced() {
        for (known, slowest) in KNOWN.iter().zip([0.3417, 1.2124, 4.660]) {
            let needs = |board: Board| board.needs(known.size).as_secs_f64();
            let speed: f64 = TABLE.iter().map(|board| 1.0 / needs(*board)).sum();
            let ideal = FRAMES as f64 / speed;
            assert!((ideal - known.ideal).abs() < 1e-6, "{ideal}");
            let alpha = ideal / needs(Board::Rpi);
            assert!((alpha - known.alpha).abs() < 1e-6, "{alpha}");
            assert!((needs(Board::Rpi) - slowest).abs() < 5e-4);
            // The slowest one is the slowest, the gateway the fastest.
            for board in TABLE {
                assert!(needs(board) <= needs(Board::Rpi) && needs(board) >= needs(Board::I7));
            }
            let shares: f64 = TABLE.iter().map(|board| board.share(known.size)).sum();
            assert!((shares - 1.0).abs() < 1e-9);
        }
        assert_eq!(Board::I7.needs(Size::HD), Duration::from_millis(41));
    }

    #[test]
    fn other_sizes_take_as_long_by_pixel() {
        let half = Size::new(960, 1080).unwrap();
        let (half, whole) = (Board::I7.needs(half), Board::I7.needs(Size::HD));
        assert_eq!(half * 2, whole);
    }
}
