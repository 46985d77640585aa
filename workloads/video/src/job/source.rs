//! The program `video-source`: gives frames to the workers.

use super::measured::{Measured, Teller};
use super::via::to_workers;
use super::{Clip, Error, Header, Via};
use crate::Frame;
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
    let mut input = args.clip.source().open()?;
    let header = Header {
        size: input.size(),
        rate: input.rate(),
    };
    let mut workers = to_workers(fabric, args.via, header)?;
    let teller = Teller::new(fabric)?;
    let mut frame = Frame::black(header.size);
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
