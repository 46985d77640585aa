//! The program `video-worker`: processes frames.

use super::args::parse_kernel;
use super::{Error, Via, at_worker};
use crate::{Kernel, Loop};
use clap::Parser;
use samite::Fabric;
use std::io::Write;

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
}

/// Runs one unit; returns after the last frame.
///
/// # Errors
/// Those of the fabric and of chunks; [`Error::Unexpected`] if the source does something else.
pub fn run(fabric: &Fabric, args: &Args, _: &mut dyn Write) -> Result<(), Error> {
    let mut frames = at_worker(fabric, args.via)?;
    let width = frames.header().size.width();
    let mut work = |frame: &[u8], result: &mut [u8]| {
        args.kernel.apply(Loop::Vector, width, frame, result);
    };
    while frames.process(&mut work)? {}
    Ok(())
}
