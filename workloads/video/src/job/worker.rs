//! The program `video-worker`: processes frames.

use super::args::parse_kernel;
use super::measured::{Measured, PATIENCE, Teller, leave};
use super::nodes::{Board, TABLE};
use super::quota::Quota;
use super::via::at_worker;
use super::{Error, Via};
use crate::{Kernel, Loop, Size};
use clap::{Parser, ValueEnum};
use samite::Fabric;
use std::io::Write;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Takes a frame when it is ready, and computes a 3x3 convolution of it.
#[derive(Clone, Debug, Parser)]
#[command(name = "video-worker")]
pub struct Args {
    /// How frames move between the programs
    #[arg(long, value_enum, default_value = "dsm")]
    pub via: Via,
    /// What is computed: sobel, laplacian or copy
    #[arg(long, default_value = "sobel", value_parser = parse_kernel)]
    pub kernel: Kernel,
    /// The loop of the kernel
    #[arg(long, value_enum, default_value = "vector")]
    pub how: Loop,
    /// Be as fast as a board of the S-DSM paper: i7, tx2, kirin, xu4, xu3, rpi; auto: by rank
    #[arg(long)]
    pub node: Option<Node>,
    /// How the speed of a board is reached
    #[arg(long, value_enum, default_value = "sleep")]
    pub pace: Pace,
}

/// Which board a worker plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// The one that has its rank in the table.
    Auto,
    /// This one.
    Board(Board),
}

/// How the speed of a board is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pace {
    /// The worker sleeps after the kernel until the board would have been done.
    Sleep,
    /// The kernel of the system gives the worker as much processor time as the board's part of all
    /// boards.
    Quota,
}

impl FromStr for Node {
    type Err = String;

    fn from_str(text: &str) -> Result<Node, String> {
        match text {
            "auto" => Ok(Node::Auto),
            _ => Board::from_str(text, true).map(Node::Board),
        }
    }
}

impl Node {
    /// Returns the board of a rank.
    fn board(self, rank: u32) -> Result<Board, Error> {
        match self {
            Node::Board(board) => Ok(board),
            Node::Auto => TABLE.get(rank as usize).copied().ok_or_else(|| {
                let most = TABLE.len();
                Error::Board(format!(
                    "worker {rank} plays no board: the table has {most}; use at most {most} workers, or name a board with `--node`"
                ))
            }),
        }
    }
}

/// Runs one unit; returns after the last frame.
///
/// # Errors
/// Those of the fabric and of chunks; [`Error::Unexpected`] if the source does something else;
/// [`Error::Board`] and [`Error::Quota`] if it cannot be as fast as it should be.
pub fn run(fabric: &Fabric, args: &Args, _: &mut dyn Write) -> Result<(), Error> {
    if args.via == Via::Sequential {
        return Ok(());
    }
    let board = args.node.map(|node| node.board(fabric.identity().rank));
    let board = board.transpose()?;
    let mut frames = at_worker(fabric, args.via)?;
    let size = frames.header().size;
    let mut teller = Teller::new(fabric)?;
    let mut work = Work::new(args, board, size)?;
    // The sink may be slow.
    fabric.within(PATIENCE, || {
        while frames.process(&mut |frame, result| work.process(frame, result))? {
            tracing::trace!(frame = work.frames - 1, "result given");
            teller.tell(|| work.measured(frames.messages()))?;
        }
        teller.finish(work.measured(frames.messages()))?;
        leave(fabric)
    })
}

/// The kernel, in the time of a board.
struct Work {
    kernel: Kernel,
    how: Loop,
    width: usize,
    board: Option<Board>,
    /// How long the board takes, if the worker sleeps.
    needs: Option<Duration>,
    /// As long as it exists, the time of the process is limited.
    quota: Option<Quota>,
    begin: Instant,
    processing: Duration,
    /// When the last frame was done.
    last: Duration,
    frames: u64,
    late: u64,
}

impl Work {
    fn new(args: &Args, board: Option<Board>, size: Size) -> Result<Work, Error> {
        let (needs, quota) = match (board, args.pace) {
            (None, _) => (None, None),
            (Some(board), Pace::Sleep) => (Some(board.needs(size)), None),
            (Some(board), Pace::Quota) => (None, Some(Quota::new(board.share(size))?)),
        };
        Ok(Work {
            kernel: args.kernel,
            how: args.how,
            width: size.width(),
            board,
            needs,
            quota,
            begin: Instant::now(),
            processing: Duration::ZERO,
            last: Duration::ZERO,
            frames: 0,
            late: 0,
        })
    }

    fn process(&mut self, frame: &[u8], result: &mut [u8]) {
        let begin = Instant::now();
        let waited = self.begin.elapsed() - self.last;
        tracing::trace!(?waited, frame = self.frames, at = ?self.begin.elapsed(), "frame begins");
        self.kernel.apply(self.how, self.width, frame, result);
        match self.needs.map(|needs| needs.checked_sub(begin.elapsed())) {
            Some(Some(rest)) => std::thread::sleep(rest),
            Some(None) => self.late += 1,
            None => {}
        }
        tracing::trace!(frame = self.frames, "frame ends");
        self.processing += begin.elapsed();
        self.last = self.begin.elapsed();
        self.frames += 1;
    }

    fn measured(&self, messages: u64) -> Measured {
        let pace = match (self.needs, &self.quota) {
            (Some(_), _) => "sleep",
            (None, Some(_)) => "quota",
            (None, None) => "none",
        };
        Measured {
            board: self.board.map(|board| board.name().to_owned()),
            board_needs_s: self.needs.map(|needs| needs.as_secs_f64()),
            pace: pace.to_owned(),
            frames: self.frames,
            processing_s: self.processing.as_secs_f64(),
            waiting_s: self
                .begin
                .elapsed()
                .saturating_sub(self.processing)
                .as_secs_f64(),
            late_frames: self.late,
            decode_s: 0.0,
            messages,
            is_last: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_are_named_or_found_by_rank() {
        let board = |text: &str, rank| text.parse::<Node>().unwrap().board(rank);
        assert_eq!(board("rpi", 0).unwrap(), Board::Rpi);
        assert_eq!(board("auto", 0).unwrap(), Board::I7);
        assert_eq!(board("auto", 7).unwrap(), Board::Rpi);
        assert!(matches!(board("auto", 8), Err(Error::Board(_))));
        assert!("rpi5".parse::<Node>().is_err());
    }

    #[test]
    fn a_frame_takes_the_time_of_the_board() {
        let size = Size::new(64, 48).unwrap();
        let args = Args::try_parse_from(["video-worker", "--node", "rpi"]).unwrap();
        let mut work = Work::new(&args, Some(Board::Rpi), size).unwrap();
        let needs = work.needs.unwrap();
        let (frame, mut result) = (vec![1; size.pixels()], vec![0; size.pixels()]);
        for _ in 0..3 {
            work.process(&frame, &mut result);
        }
        let measured = work.measured(0);
        assert!(measured.processing_s >= 3.0 * needs.as_secs_f64());
        assert_eq!((measured.frames, &*measured.pace), (3, "sleep"));
        assert_eq!(measured.needs_s(), Some(needs.as_secs_f64()));
    }
}
