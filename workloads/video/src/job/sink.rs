//! The program `video-sink`: takes the results in order.

use super::args::{parse_kernel, sink};
use super::{Clip, Error, Header, Processed, Via, from_workers};
use crate::{Checksum, Frame, Kernel, Loop, Output, Sink, sequential};
use clap::Parser;
use samite::Fabric;
use samite::program::Summary;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

/// Puts the processed frames in order, writes them, and compares them with a sequential run.
#[derive(Clone, Debug, Parser)]
#[command(name = "video-sink")]
pub struct Args {
    /// How frames move between the programs
    #[arg(long, value_enum, default_value = "dsm")]
    pub via: Via,
    /// Where the frames go: `.y4m`, or what ffmpeg encodes; without it, they are only counted
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Compare all frames with those of a sequential run of the same clip and kernel
    #[arg(long)]
    pub check: bool,
    /// The kernel of the sequential run: sobel, laplacian or copy
    #[arg(long, default_value = "sobel", value_parser = parse_kernel)]
    pub kernel: Kernel,
    /// The frames of the sequential run.
    #[command(flatten)]
    pub clip: Clip,
}

/// Runs the only unit; returns when the last frame was written and compared.
///
/// # Errors
/// [`Error::Video`] if the output cannot be written, [`Error::Different`] if it is not that of a
/// sequential run; those of the fabric and of chunks.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let mut results = from_workers(fabric, args.via)?;
    let header = results.header();
    let mut order = InOrder::new(
        header,
        sink(args.output.as_deref()).open(header.size, header.rate)?,
    );
    let mut by_worker = BTreeMap::<usize, u64>::new();
    let messages = results.messages()?;
    let begin = Instant::now();
    while let Some(result) = results.next()? {
        *by_worker.entry(result.worker).or_default() += 1;
        order.take(result)?;
    }
    let (frames, checksum) = order.finish()?;
    let elapsed = begin.elapsed().as_secs_f64();
    let messages = match (messages, results.messages()?) {
        (Some(before), Some(after)) => Some((after - before) as f64 / frames.max(1) as f64),
        _ => None,
    };
    let each: Vec<String> = by_worker.values().map(u64::to_string).collect();
    let mut summary = Summary::new("Video")
        .row(
            "frames",
            format_args!(
                "{frames} of {} x {}",
                header.size.width(),
                header.size.height()
            ),
        )
        .row("via", format!("{:?}", args.via).to_lowercase())
        .row("workers", by_worker.len())
        .row("frames of each", each.join(", "))
        .row("time", format_args!("{elapsed:.2} s"))
        .row(
            "speed",
            format_args!("{:.1} frames/s", frames as f64 / elapsed),
        )
        .row("checksum", format_args!("{checksum:016x}"));
    if let Some(messages) = messages {
        summary = summary.row("messages", format_args!("{messages:.1} per frame"));
    }
    if !args.check {
        write!(out, "{summary}")?;
        return Ok(());
    }
    let source = args.clip.source();
    let expected = sequential::run(&source, args.kernel, Loop::Vector, &Sink::Checksum)?;
    let right = (expected.frames, expected.checksum) == (frames, Some(checksum));
    let alone = expected.decode + expected.process + expected.encode;
    let detail = format!(
        "{frames} of {} frames, compared with a sequential run of {:.2} s",
        expected.frames,
        alone.as_secs_f64()
    );
    write!(out, "{}", summary.verification(right, &detail))?;
    match right {
        true => Ok(()),
        false => Err(Error::Different(format!(
            "{frames} frames with the checksum {checksum:016x} instead of {} with {:016x}",
            expected.frames,
            expected.checksum.unwrap_or_default()
        ))),
    }
}

/// Writes frames in the order of their numbers.
struct InOrder {
    output: Output,
    checksum: Checksum,
    /// The next frame to be written; used again.
    frame: Frame,
    /// Those that came before their turn.
    early: BTreeMap<u64, Processed>,
}

impl InOrder {
    fn new(header: Header, output: Output) -> InOrder {
        InOrder {
            output,
            checksum: Checksum::new(),
            frame: Frame::black(header.size),
            early: BTreeMap::new(),
        }
    }

    fn take(&mut self, result: Processed) -> Result<(), Error> {
        let number = result.number;
        let is_late = number < self.frame.number;
        if is_late || self.early.insert(number, result).is_some() {
            return Err(Error::Unexpected(format!("frame {number} twice")));
        }
        while let Some(next) = self.early.remove(&self.frame.number) {
            self.frame.pixels.copy_from_slice(&next.pixels);
            drop(next);
            self.checksum.add(&self.frame);
            self.output.write(&self.frame)?;
            self.frame.number += 1;
        }
        Ok(())
    }

    /// Completes the output. Returns the number of frames and their checksum.
    fn finish(self) -> Result<(u64, u64), Error> {
        if let Some(early) = self.early.first_key_value() {
            let (missing, early) = (self.frame.number, early.0);
            let what = format!("frame {early}, but not frame {missing}");
            return Err(Error::Unexpected(what));
        }
        self.output.finish()?;
        Ok((self.frame.number, self.checksum.value()))
    }
}
