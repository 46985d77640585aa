//! The program `video-sink`: takes the results in order.

use super::args::{parse_kernel, sink};
use super::figures::{Figures, Run};
use super::live::{self, Live};
use super::measured::{Measured, Told};
use super::order::InOrder;
use super::via::{Pixels, Processed, from_workers};
use super::{Clip, Error, Header, Via, report};
use crate::partial::{self, Partial};
use crate::{Frame, Kernel, Loop, Sink, sequential};
use clap::Parser;
use samite::Fabric;
use samite::program::Summary;
use samite_report::Picture;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
    /// What the run is called in its figures and on pages; by default, how frames move
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// Write what the run was like as JSON
    #[arg(long, value_name = "FILE")]
    pub figures: Option<PathBuf>,
    /// Write what the run was like as a page
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Show the stream and the load of the workers in a browser; on this host alone, and at any
    /// port, unless an address is given
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        default_missing_value = "true",
        value_parser = parse_address
    )]
    pub live: Option<SocketAddr>,
    /// The rate per second at which frames can leave and reach this host, such as 117MB, for the
    /// lower bound of the time
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub link_rate: Option<f64>,
    /// The frames of the sequential run.
    #[command(flatten)]
    pub clip: Clip,
}

/// Parses the address of the live page; `true` is any port of this host alone.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let here = if text == "true" { "127.0.0.1:0" } else { text };
    let expected = |_| "expected an address such as 127.0.0.1:8080, or true".to_owned();
    here.parse().map_err(expected)
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate: bytesize::ByteSize = text.parse()?;
    match rate.as_u64() {
        0 => Err("expected more than nothing per second".to_owned()),
        rate => Ok(rate as f64),
    }
}

/// Runs the only unit; returns when the last frame was written and compared.
///
/// # Errors
/// [`Error::Video`] if the output cannot be written, [`Error::Different`] if it is not that of a
/// sequential run, [`Error::Report`] and [`Error::Live`] if pages cannot be written or served;
/// those of the fabric and of chunks.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    partial::remove_at_signals()?;
    // A long run must not end with files that cannot be written.
    for path in args.figures.iter().chain(&args.report) {
        has_folder(path)?;
    }
    let files = [
        ("--file", args.clip.file.as_deref()),
        ("--output", args.output.as_deref()),
        ("--figures", args.figures.as_deref()),
        ("--report", args.report.as_deref()),
    ];
    are_apart(&files)?;
    let live = args.live.map(Live::start).transpose()?;
    if let Some(live) = &live {
        writeln!(out, "live page: http://{}/", live.address())?;
        out.flush()?;
    }
    let done = match args.via {
        Via::Sequential => alone(args, live)?,
        _ => by_workers(fabric, args, live)?,
    };
    let (frames, checksum) = (done.frames, done.checksum);
    let run = Run {
        via: args.via.to_string(),
        label: args.label.clone(),
        servers: args.via.has_servers().then(|| {
            let topology = samite::dsm::Topology::of_process();
            topology.servers().count() as u64
        }),
        kernel: name(args.kernel),
        header: done.header,
        frames,
        checksum,
        wall_s: done.wall.as_secs_f64(),
        encode_s: done.encode.as_secs_f64(),
        link: args.link_rate,
        source: &done.by_source,
        workers: done.by_workers,
        messages: done.messages,
    };
    let mut figures = run.figures();
    let expected = args.check.then(|| {
        let source = args.clip.source();
        sequential::run(&source, args.kernel, Loop::Vector, &Sink::Checksum)
    });
    let expected = expected.transpose()?;
    let is_right = expected.map(|all| (all.frames, all.checksum) == (frames, Some(checksum)));
    figures.verified = is_right;
    // A file of other frames does not get its name.
    if let (Some(partial), true) = (done.partial, is_right != Some(false)) {
        partial.complete()?;
    }
    if let Some(path) = &args.figures {
        figures.write(path)?;
    }
    if let Some(path) = &args.report {
        let picture = done.picture.as_ref();
        report::write(path, std::slice::from_ref(&figures), picture, &[])?;
    }
    let mut summary = summary(&figures);
    if let Some(path) = &args.report {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        summary = summary.row("report", path.display());
    }
    if let (Some(expected), Some(is_right)) = (expected, is_right) {
        let alone = expected.decode + expected.process + expected.encode;
        let detail = format!(
            "{frames} of {} frames, compared with a sequential run of {:.2} s",
            expected.frames,
            alone.as_secs_f64()
        );
        summary = summary.verification(is_right, &detail);
        if !is_right {
            write!(out, "{summary}")?;
            return Err(Error::Different(format!(
                "{frames} frames with the checksum {checksum:016x} instead of {} with {:016x}",
                expected.frames,
                expected.checksum.unwrap_or_default()
            )));
        }
    }
    Ok(write!(out, "{summary}")?)
}

/// What there is when all frames are written.
struct Done {
    header: Header,
    frames: u64,
    checksum: u64,
    /// The output, which has not got its name yet.
    partial: Option<Partial>,
    /// Of the last frame, if the page shows it.
    picture: Option<Picture>,
    wall: Duration,
    /// The time of the sink itself.
    encode: Duration,
    by_source: Measured,
    /// What each worker said last, and how many of its frames have come.
    by_workers: Vec<(Measured, u64)>,
    messages: u64,
}

/// Takes what the workers have processed.
fn by_workers(fabric: &Fabric, args: &Args, live: Option<Live>) -> Result<Done, Error> {
    let mut results = from_workers(fabric, args.via)?;
    let mut told = Told::new(fabric)?;
    let header = results.header();
    let output = sink(args.output.as_deref()).open(header.size, header.rate)?;
    let mut order = InOrder::new(header, output, live);
    let taken = order.take_all(&mut *results, &mut told)?;
    let picture = args.report.is_some().then(|| report::picture(&order.frame));
    let (frames, checksum, partial) = order.finish()?;
    let wall = taken.begin.elapsed();
    told.finish()?;
    let sent = told.by_workers.iter().chain([&told.by_source]);
    let sent: u64 = sent.map(|measured| measured.messages).sum();
    Ok(Done {
        header,
        frames,
        checksum,
        partial,
        picture,
        wall,
        // The time in which it waits for frames is not its own.
        encode: wall.saturating_sub(taken.waiting),
        by_source: told.by_source,
        by_workers: told.by_workers.into_iter().zip(taken.of_workers).collect(),
        messages: taken.messages + sent,
    })
}

/// Reads and processes all frames itself.
fn alone(args: &Args, live: Option<Live>) -> Result<Done, Error> {
    let mut input = args.clip.source().open()?;
    let header = Header {
        size: input.size(),
        rate: input.rate(),
    };
    let output = sink(args.output.as_deref()).open(header.size, header.rate)?;
    let mut order = InOrder::new(header, output, live);
    let mut frame = Frame::black(header.size);
    let begin = Instant::now();
    let (mut decode, mut process) = (Duration::ZERO, Duration::ZERO);
    // When the live page was told last, and `process` then.
    let mut told = (begin, process);
    for number in 0.. {
        let since = Instant::now();
        let is_frame = input.read(&mut frame)?;
        decode += since.elapsed();
        if !is_frame {
            break;
        }
        let since = Instant::now();
        let mut pixels = vec![0; frame.pixels.len()];
        args.kernel.apply(
            Loop::Vector,
            header.size.width(),
            &frame.pixels,
            &mut pixels,
        );
        process += since.elapsed();
        let pixels = Pixels::Message(pixels);
        order.take(Processed {
            number,
            worker: 0,
            pixels,
        })?;
        order.write_next()?;
        if let Some(live) = &mut order.live {
            live.tell(order.frame.number, || {
                let since = std::mem::replace(&mut told, (Instant::now(), process));
                let load = (process - since.1).div_duration_f64(told.0 - since.0);
                vec![live::Worker {
                    name: "worker 0".to_owned(),
                    frames: order.frame.number,
                    load,
                    silent_s: 0.0,
                    is_lost: false,
                }]
            });
        }
    }
    let picture = args.report.is_some().then(|| report::picture(&order.frame));
    let (frames, checksum, partial) = order.finish()?;
    let wall = begin.elapsed();
    let by_source = Measured {
        decode_s: decode.as_secs_f64(),
        ..Measured::default()
    };
    let worker = Measured {
        pace: "none".to_owned(),
        frames,
        processing_s: process.as_secs_f64(),
        waiting_s: wall.saturating_sub(process).as_secs_f64(),
        is_last: true,
        ..Measured::default()
    };
    Ok(Done {
        header,
        frames,
        checksum,
        partial,
        picture,
        wall,
        encode: wall.saturating_sub(decode + process),
        by_source,
        by_workers: vec![(worker, frames)],
        messages: 0,
    })
}

/// Checks that a file can have this path.
fn has_folder(path: &Path) -> Result<(), Error> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let found = folder.map_or(Ok(true), |folder| {
        folder.metadata().map(|found| found.is_dir())
    });
    let found = found.and_then(|is_folder| match is_folder {
        true => Ok(()),
        false => Err(std::io::ErrorKind::NotADirectory.into()),
    });
    found.map_err(|source| {
        Error::Video(crate::Error::File {
            path: path.to_owned(),
            doing: "created",
            source,
        })
    })
}

/// Checks that no two of these files are the same: one would take the place of another.
fn are_apart(files: &[(&'static str, Option<&Path>)]) -> Result<(), Error> {
    let mut seen: Vec<(&'static str, PathBuf)> = Vec::new();
    for (option, path) in files
        .iter()
        .filter_map(|(option, path)| Some((*option, (*path)?)))
    {
        // One that does not exist yet is in a folder that does, or is refused elsewhere. What is no
        // file, such as a pipe, is not replaced.
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            continue;
        }
        let in_folder = || {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
            Some(folder.join(path.file_name()?))
        };
        let place = path.canonicalize().ok().or_else(in_folder);
        let place = place.unwrap_or_else(|| path.to_owned());
        if let Some((other, _)) = seen.iter().find(|(_, found)| *found == place) {
            return Err(Error::SameFile {
                path: path.to_owned(),
                options: [other, option],
            });
        }
        seen.push((option, place));
    }
    Ok(())
}

fn name(kernel: Kernel) -> &'static str {
    match kernel {
        Kernel::Sobel => "sobel",
        Kernel::Laplacian => "laplacian",
        Kernel::Copy => "copy",
    }
}

/// Returns the figures for people.
fn summary(figures: &Figures) -> Summary {
    let Figures {
        frames,
        width,
        height,
        wall_s,
        ..
    } = figures;
    let each: Vec<String> = figures
        .nodes
        .iter()
        .map(|node| node.frames.to_string())
        .collect();
    let bounds = figures.bounds.all().into_iter();
    let bounds = bounds.filter_map(|(name, bound)| Some(format!("{name} {:.2} s", bound?)));
    let late: u64 = figures.nodes.iter().map(|node| node.late_frames).sum();
    let mut summary = Summary::new("Video")
        .row("frames", format_args!("{frames} of {width} x {height}"))
        .row("via", &figures.via)
        .row("workers", figures.nodes.len())
        .row("frames of each", each.join(", "))
        .row("time", format_args!("{wall_s:.2} s"))
        .row(
            "speed",
            format_args!("{:.1} frames/s", *frames as f64 / wall_s),
        )
        .row("lower bounds", bounds.collect::<Vec<_>>().join(", "))
        .row(
            "ideal/time",
            format_args!("{:.3}; the bound is {}", figures.efficiency, figures.binds),
        )
        .row(
            "deviation",
            format_args!(
                "{:.1} frames from the ideal; {:.4} of twice the frames",
                figures.deviation, figures.deviation_of_2n
            ),
        )
        .row(
            "messages",
            format_args!("{:.1} per frame", figures.messages_per_frame),
        )
        .row("checksum", &figures.checksum);
    if late > 0 {
        let what = "for which the kernel took longer than the board";
        summary = summary.row("late", format_args!("{late} frames {what}"));
    }
    summary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        has_folder(&file).unwrap();
        has_folder(Path::new("file")).unwrap();
        assert!(has_folder(&file.join("more")).is_err());
        assert!(has_folder(&folder.path().join("none/file")).is_err());
    }

    #[test]
    fn a_file_is_used_once() {
        let folder = tempfile::tempdir().unwrap();
        let [clip, link, new] = ["clip", "link", "new"].map(|name| folder.path().join(name));
        std::fs::write(&clip, "").unwrap();
        std::os::unix::fs::symlink(&clip, &link).unwrap();
        let again = folder.path().join(".").join("new");
        let check = |file: &Path, output: &Path| {
            are_apart(&[
                ("--file", Some(file)),
                ("--figures", None),
                ("--output", Some(output)),
            ])
        };
        check(&clip, &new).unwrap();
        check(Path::new("/dev/null"), Path::new("/dev/null")).unwrap();
        for (file, output) in [(&clip, &clip), (&clip, &link), (&new, &again)] {
            let error = check(file, output).unwrap_err().to_string();
            assert!(error.contains("--file and --output"), "{error}");
        }
    }

    #[test]
    fn rates_have_units() {
        assert_eq!(parse_rate("117MB"), Ok(117e6));
        assert!(parse_rate("0").is_err() && parse_rate("fast").is_err());
        let args = |line: &[&str]| Args::try_parse_from(line.iter().copied());
        let live = args(&["video-sink", "--live"]).unwrap().live.unwrap();
        assert!(live.ip().is_loopback());
        assert!(args(&["video-sink", "--live", "somewhere"]).is_err());
    }
}
