//! The program `video-source`: gives frames to the workers.

use super::{Clip, Error, Header, Via, to_workers};
use crate::Frame;
use clap::Parser;
use samite::Fabric;
use std::io::Write;

/// Decodes or generates the frames of a video, and gives each to a worker that is ready.
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

/// Runs the only unit; returns when all frames have arrived at the sink.
///
/// # Errors
/// [`Error::Video`] if the frames cannot be read; those of the fabric and of chunks.
pub fn run(fabric: &Fabric, args: &Args, _: &mut dyn Write) -> Result<(), Error> {
    let mut input = args.clip.source().open()?;
    let header = Header {
        size: input.size(),
        rate: input.rate(),
    };
    let mut workers = to_workers(fabric, args.via, header)?;
    let mut frame = Frame::black(header.size);
    let mut frames = 0;
    while input.read(&mut frame)? {
        workers.send(frames, &frame.pixels)?;
        frames += 1;
    }
    workers.finish(frames)
}
