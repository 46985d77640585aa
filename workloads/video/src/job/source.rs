//! The program `video-source`: gives frames to the workers.

use super::measured::{Measured, PATIENCE, Teller};
use super::via::{ToWorkers, to_workers};
use super::{Clip, Error, Header, Via};
use crate::{Frame, Input};
use clap::Parser;
use samite::Fabric;
use std::io::Write;
use std::time::{Duration, Instant};

/// Decodes or generates the frames of a video, and gives them to the workers.
#[derive(Clone, Debug, Parser)]
#[command(name = "video-source")]
pub struct Args {
    /// How frames move between the programs
    #[arg(long, value_enum, default_value = "dsm")]
    pub via: Via,
    /// The frames.
    #[command(flatten)]
    pub clip: Clip,
}

/// Runs the only unit; returns when the workers have all frames.
///
/// # Errors
/// [`Error::Video`] if the frames cannot be read; those of the fabric and of chunks.
pub fn run(fabric: &Fabric, args: &Args, _: &mut dyn Write) -> Result<(), Error> {
    if args.via == Via::Sequential {
        return Ok(());
    }
    let input = args.clip.source().open()?;
    let header = Header {
        size: input.size(),
        rate: input.rate(),
    };
    let workers = to_workers(fabric, args.via, header)?;
    // The workers may have to wait for the sink.
    fabric.within(PATIENCE, || give_all(fabric, input, workers))
}

/// Gives all frames to the workers, and tells what that took.
fn give_all(
    fabric: &Fabric,
    mut input: Input,
    mut workers: Box<dyn ToWorkers>,
) -> Result<(), Error> {
    let teller = Teller::new(fabric)?;
    let mut frame = Frame::black(input.size());
    let (mut frames, mut decode) = (0, Duration::ZERO);
    loop {
        let begin = Instant::now();
        let is_frame = input.read(&mut frame)?;
        decode += begin.elapsed();
        if !is_frame {
            break;
        }
        workers.send(frames, &frame.pixels, input.left())?;
        frames += 1;
    }
    workers.finish(frames)?;
    teller.finish(Measured {
        frames,
        decode_s: decode.as_secs_f64(),
        messages: workers.messages(),
        ..Measured::default()
    })
}
