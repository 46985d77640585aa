//! The report: a page about one run, or about several. It has the S-DSM paper's Table 2 (frames of
//! each worker, and how far they are from an ideal run), Figure 2 (time per way and size) and
//! Figure 3 (processing and waiting of each worker), and every lower bound of the time.
//!
//! The sink writes the page of its run (`video-sink --report`). The program `video-report` writes
//! that of several runs, from their figures (`video-sink --figures`).

use super::figures::{Figures, Node};
use super::{Error, Result};
use crate::Frame;
use clap::Parser;
use samite::Fabric;
use samite_report::{Bar, Bars, Check, Fact, Field, Picture, Report, Section, Table};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The longest side of the picture of a frame.
const PICTURE: usize = 960;

/// Writes a page about several runs of the video, from what `video-sink --figures` has written.
#[derive(Clone, Debug, Parser)]
#[command(name = "video-report")]
pub struct Args {
    /// The figures of the runs
    #[arg(required = true, value_name = "FIGURES")]
    pub figures: Vec<PathBuf>,
    /// Where the page goes
    #[arg(long, value_name = "FILE", default_value = "samite-report-video.html")]
    pub report: PathBuf,
}

/// Runs the only unit.
///
/// # Errors
/// [`Error::Figures`] and [`Error::Video`] if a file holds none or cannot be read,
/// [`Error::Report`] if the page cannot be written.
pub fn run(_: &Fabric, args: &Args, out: &mut dyn Write) -> Result<()> {
    let runs = args.figures.iter().map(|path| Figures::read(path));
    let runs = runs.collect::<Result<Vec<_>>>()?;
    write(&args.report, &runs, None)?;
    let path = std::path::absolute(&args.report).unwrap_or_else(|_| args.report.clone());
    Ok(writeln!(out, "report  {}", path.display())?)
}

/// Returns a picture of a frame.
pub(super) fn picture(frame: &Frame) -> Picture {
    let (width, height) = (frame.size.width(), frame.size.height());
    let mut picture = Picture::new([height, width], PICTURE);
    let mut cells = vec![0.0; width];
    for (row, pixels) in frame.pixels.chunks_exact(width).enumerate() {
        for (cell, pixel) in cells.iter_mut().zip(pixels) {
            *cell = f64::from(*pixel);
        }
        picture.add_row(row, &cells);
    }
    picture
}

/// Writes the page.
pub(super) fn write(path: &Path, runs: &[Figures], picture: Option<&Picture>) -> Result<()> {
    let field = picture.map(|picture| Field {
        picture,
        values: 0.0..255.0,
        caption: "The last frame, after the kernel.",
        axes: ["row", "column"],
        side: "",
        parts: &[],
    });
    let sizes = sizes(runs);
    let mut sections = vec![times(runs, &sizes)];
    for size in &sizes {
        let runs: Vec<&Figures> = runs.iter().filter(|run| size_of(run) == *size).collect();
        sections.push(shares(&runs));
        sections.push(workers(&runs));
    }
    let checks: Vec<Check> = runs.iter().flat_map(checks).collect();
    let summary = match runs {
        [run] => format!(
            "{} frames of {} × {} pixels through a 3x3 convolution ({}), by {} workers.",
            run.frames,
            run.width,
            run.height,
            run.kernel,
            run.nodes.len()
        ),
        _ => format!("{} runs of a video through a 3x3 convolution.", runs.len()),
    };
    let facts = match runs {
        [run] => vec![("The run", facts(run))],
        _ => Vec::new(),
    };
    let report = Report {
        title: "Video",
        summary: &summary,
        checks: &checks,
        field,
        facts: &facts,
        sections: &sections,
    };
    report.write(path).map_err(Error::from)
}

fn size_of(run: &Figures) -> (u64, u64) {
    (run.width, run.height)
}

/// Returns the sizes of the runs, the smallest first.
fn sizes(runs: &[Figures]) -> Vec<(u64, u64)> {
    let mut sizes: Vec<_> = runs.iter().map(size_of).collect();
    sizes.sort_by_key(|(width, height)| (width.saturating_mul(*height), *width));
    sizes.dedup();
    sizes
}

fn name_of((width, height): (u64, u64)) -> String {
    let name = match (width, height) {
        (1920, 1080) => "HD, ",
        (3840, 2160) => "UHD-1, ",
        (7680, 4320) => "UHD-2, ",
        _ => "",
    };
    format!("{name}{width} × {height}")
}

fn seconds(time: f64) -> String {
    format!("{time:.2} s")
}

fn checks(run: &Figures) -> Vec<Check> {
    let name = |what: &str| format!("{} at {}: {what}", run.via, name_of(size_of(run)));
    let verified = match run.verified {
        Some(true) => "all frames are those of a sequential run, bit by bit",
        Some(false) => "the frames differ from those of a sequential run",
        None => "not compared with a sequential run",
    };
    let ideal = format!(
        "{} of at least {}, bound by {}: ideal/time is {:.3}",
        seconds(run.wall_s),
        seconds(run.ideal_s),
        run.binds,
        run.efficiency
    );
    vec![
        Check::new(name("result"), run.verified, verified),
        Check::new(name("time"), None, ideal),
    ]
}

fn facts(run: &Figures) -> Vec<Fact> {
    let pace = match &*run.pace {
        "sleep" => "boards of the S-DSM paper, which sleep after the kernel",
        "quota" => "boards of the S-DSM paper, by quotas of processor time",
        _ => "as fast as they are",
    };
    vec![
        Fact::new("frames move", &run.via),
        Fact::new("workers", pace),
        Fact::new("time", seconds(run.wall_s)),
        Fact::new(
            "frames per second",
            format!("{:.1}", run.frames as f64 / run.wall_s),
        ),
        Fact::new(
            "messages per frame",
            format!("{:.1}", run.messages_per_frame),
        ),
        Fact::new(
            "deviation",
            format!(
                "{:.1} frames; {:.4} of twice the frames",
                run.deviation, run.deviation_of_2n
            ),
        ),
        Fact::new("checksum", &run.checksum),
    ]
}

/// Figure 2, and all lower bounds.
fn times(runs: &[Figures], sizes: &[(u64, u64)]) -> Section {
    let chart = |size: &(u64, u64)| {
        let runs = runs.iter().filter(|run| size_of(run) == *size);
        let row = |run: &Figures| Bar {
            name: run.via.clone(),
            parts: vec![run.wall_s],
            mark: Some(run.ideal_s),
        };
        Bars {
            title: name_of(*size),
            unit: "s".to_owned(),
            parts: vec!["time".to_owned()],
            mark: Some("largest lower bound".to_owned()),
            rows: runs.map(row).collect(),
        }
    };
    let mut table = Table::new([
        "frames move by",
        "size",
        "time",
        "decode",
        "compute",
        "link",
        "encode",
        "bound by",
        "ideal/time",
        "messages per frame",
    ]);
    for run in runs {
        let bounds = run.bounds.all();
        let bounds = bounds.map(|(_, bound)| bound.map_or("–".to_owned(), seconds));
        let [decode, compute, link, encode] = bounds;
        table.add([
            run.via.clone(),
            name_of(size_of(run)),
            seconds(run.wall_s),
            decode,
            compute,
            link,
            encode,
            run.binds.clone(),
            format!("{:.3}", run.efficiency),
            format!("{:.1}", run.messages_per_frame),
        ]);
    }
    Section {
        title: "Time, and lower bounds of it".to_owned(),
        bars: sizes.iter().map(chart).collect(),
        table: Some(table),
        ..Section::default()
    }
}

/// Table 2: the frames of each worker, for runs of one size.
fn shares(runs: &[&Figures]) -> Section {
    let header = ["worker", "frame takes", "ideal"].map(str::to_owned);
    let header = header
        .into_iter()
        .chain(runs.iter().map(|run| run.via.clone()));
    let mut table = Table::new(header);
    let most = runs.iter().map(|run| run.nodes.len()).max().unwrap_or(0);
    for rank in 0..most {
        let nodes: Vec<Option<&Node>> = runs.iter().map(|run| run.nodes.get(rank)).collect();
        let Some(first) = nodes.iter().flatten().next() else {
            continue;
        };
        let needs = first
            .needs_s
            .map_or("–".to_owned(), |needs| format!("{:.1} ms", needs * 1e3));
        let frames = nodes.iter().map(|node| match node {
            None => "–".to_owned(),
            Some(node) if node.is_lost => format!("{} (lost)", node.frames),
            Some(node) => node.frames.to_string(),
        });
        let row = [
            first.name.clone(),
            needs,
            format!("{:.1}", first.ideal_frames),
        ];
        table.add(row.into_iter().chain(frames));
    }
    let line = |name: &str, value: &dyn Fn(&Figures) -> String| -> Vec<String> {
        let row = [name.to_owned(), String::new(), String::new()];
        row.into_iter()
            .chain(runs.iter().map(|run| value(run)))
            .collect()
    };
    table.add(line("deviation", &|run| format!("{:.1}", run.deviation)));
    table.add(line("deviation / 2N", &|run| {
        format!("{:.4}", run.deviation_of_2n)
    }));
    Section {
        title: format!("Frames of each worker: {}", heading(runs)),
        table: Some(table),
        ..Section::default()
    }
}

/// Figure 3: the time of each worker, for runs of one size.
fn workers(runs: &[&Figures]) -> Section {
    let chart = |run: &&Figures| {
        let row = |node: &Node| Bar {
            name: node.name.clone(),
            parts: vec![node.processing_s, node.waiting_s],
            mark: None,
        };
        Bars {
            title: run.via.clone(),
            unit: "s".to_owned(),
            parts: vec!["processing".to_owned(), "waiting".to_owned()],
            mark: None,
            rows: run.nodes.iter().map(row).collect(),
        }
    };
    Section {
        title: format!("Processing and waiting: {}", heading(runs)),
        bars: runs.iter().map(chart).collect(),
        ..Section::default()
    }
}

fn heading(runs: &[&Figures]) -> String {
    runs.first()
        .map_or(String::new(), |run| name_of(size_of(run)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Size;
    use crate::job::figures::Bounds;

    fn run(via: &str, width: u64, wall_s: f64) -> Figures {
        let node = |name: &str, frames| Node {
            name: name.to_owned(),
            frames,
            ideal_frames: 20.5,
            needs_s: Some(0.1),
            processing_s: 2.25,
            waiting_s: 0.75,
            ..Node::default()
        };
        Figures {
            format: String::new(),
            via: via.to_owned(),
            kernel: "sobel".to_owned(),
            width,
            height: 1080,
            frames: 41,
            pace: "sleep".to_owned(),
            wall_s,
            bounds: Bounds {
                compute_s: 2.0,
                ..Bounds::default()
            },
            ideal_s: 2.0,
            binds: "compute".to_owned(),
            efficiency: 2.0 / wall_s,
            deviation: 1.0,
            deviation_of_2n: 0.0122,
            messages_per_frame: 7.5,
            nodes: vec![node("i7", 21), node("RPI 3B+", 20)],
            checksum: "0123".to_owned(),
            verified: Some(true),
        }
    }

    #[test]
    fn a_page_shows_all_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.html");
        let frame = Frame::black(Size::new(64, 48).unwrap());
        let runs = [
            run("dsm", 1920, 2.5),
            run("req-rep", 1920, 4.0),
            run("dsm", 99, 2.5),
        ];
        write(&path, &runs, Some(&picture(&frame))).unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        for part in [
            "3 runs",
            "HD, 1920 × 1080",
            "99 × 1080",
            "req-rep",
            "RPI 3B+",
            "0.0122",
            "2.25 + 0.75 s",
            "compute",
            "data:image/png",
            "deviation / 2N",
        ] {
            assert!(page.contains(part), "{part}");
        }
        write(&path, &[], None).unwrap();
        write(&path, &runs[..1], None).unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(page.contains("41 frames of 1920 × 1080"), "{page}");
    }
}
