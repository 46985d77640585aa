//! The report: a page about one run, or about several, of Samite and of other systems. It has the
//! S-DSM paper's Table 2 (frames of each worker, and how far they are from an ideal run), Figure 2
//! (time per way and size) and Figure 3 (processing and waiting of each worker), and every lower
//! bound of the time.
//!
//! The sink writes the page of its run (`video-sink --report`). The program `video-report` writes
//! that of several runs, from their figures (`video-sink --figures`), and `samite bench video
//! --pages` that of all systems.

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
/// The file of a run's figures in the folder of the run.
const FIGURES: &str = "figures.json";

/// Writes a page about several runs of the video, from what `video-sink --figures` has written.
#[derive(Clone, Debug, Parser)]
#[command(name = "video-report")]
pub struct Args {
    /// The figures of the runs; a folder stands for all FOLDER/*/figures.json, by their names
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
    let mut runs = Vec::new();
    for path in &args.figures {
        let files = match path.is_dir() {
            true => files_in(path)?,
            false => vec![path.clone()],
        };
        for file in files {
            runs.push(Figures::read(&file)?);
        }
    }
    write(&args.report, &runs, None, &[])?;
    let path = args.report.canonicalize();
    let path = path.unwrap_or_else(|_| args.report.clone());
    Ok(writeln!(out, "report  {}", path.display())?)
}

/// Returns the figures of all runs that have folders in this one.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let wrong = |source| {
        Error::Video(crate::Error::File {
            path: folder.to_owned(),
            doing: "read",
            source,
        })
    };
    let mut files = Vec::new();
    for run in folder.read_dir().map_err(wrong)? {
        let file = run.map_err(wrong)?.path().join(FIGURES);
        if file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
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

/// Writes the page. `absent`: systems that did not run, each with the reason.
///
/// # Errors
/// [`Error::Report`].
pub fn write(
    path: &Path,
    runs: &[Figures],
    picture: Option<&Picture>,
    absent: &[(String, String)],
) -> Result<()> {
    let field = picture.map(|picture| Field {
        picture,
        values: 0.0..255.0,
        caption: "The last frame, after the kernel.",
        axes: ["row", "column"],
        side: "",
        parts: &[],
    });
    let mut sections = Vec::new();
    let mut checks = Vec::new();
    for (clip, runs) in by_clip(runs) {
        match runs[..] {
            [run] => checks.extend(checks_of(run)),
            _ => checks.push(check_of(clip, &runs)),
        }
        sections.extend([
            times(clip, &runs),
            shares(clip, &runs),
            workers(clip, &runs),
        ]);
    }
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
    let mut facts = Vec::new();
    if let [run] = runs {
        facts.push(("The run", facts_of(run)));
    }
    if !absent.is_empty() {
        let absent = absent.iter();
        let absent = absent.map(|(system, why)| Fact::new(system, why));
        facts.push(("Did not run", absent.collect()));
    }
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

/// Returns the times of all runs and their lower bounds, for a terminal.
pub fn text(runs: &[Figures]) -> String {
    let tables = by_clip(runs).into_iter().map(|(clip, runs)| {
        let table = bounds(&runs);
        format!("{}\n{}\n", name_of(clip), table.text(usize::MAX))
    });
    tables.collect::<Vec<_>>().join("\n")
}

/// Width, height, and number of frames.
type Clip = (u64, u64, u64);

fn clip_of(run: &Figures) -> Clip {
    (run.width, run.height, run.frames)
}

/// Returns the runs of each clip, the smallest frames first.
fn by_clip(runs: &[Figures]) -> Vec<(Clip, Vec<&Figures>)> {
    let mut clips: Vec<Clip> = runs.iter().map(clip_of).collect();
    clips.sort_by_key(|(width, height, frames)| (width.saturating_mul(*height), *width, *frames));
    clips.dedup();
    let of = |clip: Clip| runs.iter().filter(move |run| clip_of(run) == clip);
    clips
        .into_iter()
        .map(|clip| (clip, of(clip).collect()))
        .collect()
}

fn name_of((width, height, frames): Clip) -> String {
    let name = match (width, height) {
        (1920, 1080) => "HD, ",
        (3840, 2160) => "UHD-1, ",
        (7680, 4320) => "UHD-2, ",
        _ => "",
    };
    format!("{name}{width} × {height}, {frames} frames")
}

fn seconds(time: f64) -> String {
    format!("{time:.2} s")
}

fn checks_of(run: &Figures) -> [Check; 2] {
    let name = |what: &str| format!("{}, {}: {what}", run.name(), name_of(clip_of(run)));
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
    [
        Check::new(name("result"), run.verified, verified),
        Check::new(name("time"), None, ideal),
    ]
}

/// The results of several runs.
fn check_of(clip: Clip, runs: &[&Figures]) -> Check {
    let named = |verified| {
        let some = runs.iter().filter(|run| run.verified == verified);
        some.map(|run| run.name()).collect::<Vec<_>>().join(", ")
    };
    let (different, unknown) = (named(Some(false)), named(None));
    let (passed, detail) = match (different.is_empty(), unknown.is_empty()) {
        (false, _) => (Some(false), format!("different: {different}")),
        (true, false) => (None, format!("not compared: {unknown}")),
        (true, true) => (
            Some(true),
            format!("of all {} runs, bit by bit", runs.len()),
        ),
    };
    let name = format!("{}: frames of a sequential run", name_of(clip));
    Check::new(name, passed, detail)
}

fn facts_of(run: &Figures) -> Vec<Fact> {
    let pace = match &*run.pace {
        "sleep" => "boards of the S-DSM paper, which sleep after the kernel",
        "quota" => "boards of the S-DSM paper, by quotas of processor time",
        _ => "as fast as they are",
    };
    vec![
        Fact::new("frames move", run.name()),
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

/// Figure 2, and all lower bounds, for runs of one clip.
fn times(clip: Clip, runs: &[&Figures]) -> Section {
    let row = |run: &&Figures| Bar {
        name: run.name().to_owned(),
        parts: vec![run.wall_s],
        mark: Some(run.ideal_s),
    };
    let chart = Bars {
        title: "Time".to_owned(),
        unit: "s".to_owned(),
        parts: vec!["time".to_owned()],
        mark: Some("largest lower bound".to_owned()),
        rows: runs.iter().map(row).collect(),
    };
    Section {
        title: format!("Time, and lower bounds of it: {}", name_of(clip)),
        bars: vec![chart],
        table: Some(bounds(runs).whole()),
        ..Section::default()
    }
}

fn bounds(runs: &[&Figures]) -> Table {
    let mut table = Table::new([
        "frames move by",
        "time",
        "decode",
        "compute",
        "link",
        "encode",
        "bound by",
        "ideal / time",
        "messages per frame",
    ]);
    for run in runs {
        let bounds = run.bounds.all();
        let bounds = bounds.map(|(_, bound)| bound.map_or("–".to_owned(), seconds));
        let [decode, compute, link, encode] = bounds;
        table.add([
            run.name().to_owned(),
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
    table
}

/// Table 2: the frames of each worker, for runs of one clip.
fn shares(clip: Clip, runs: &[&Figures]) -> Section {
    let none: &[Node] = &[];
    let most = runs.iter().max_by_key(|run| run.nodes.len());
    let nodes = most.map_or(none, |run| &run.nodes);
    let ends = ["deviation", "deviation / 2N"].map(str::to_owned);
    let header = [String::new()].into_iter();
    let header = header.chain(nodes.iter().map(|node| node.name.clone()));
    let mut table = Table::new(header.chain(ends));
    let line = |name: &str, cell: &dyn Fn(&Node) -> String| -> Vec<String> {
        let row = [name.to_owned()].into_iter();
        let row = row.chain(nodes.iter().map(cell));
        row.chain([String::new(), String::new()]).collect()
    };
    // Of workers that differ from run to run, there is no one ideal.
    if runs.iter().all(|run| has_speeds_of(run, nodes)) {
        table.add(line("ms per frame", &|node| match node.needs_s {
            Some(needs) => format!("{:.1}", needs * 1e3),
            None => "–".to_owned(),
        }));
        table.add(line("ideal", &|node| format!("{:.1}", node.ideal_frames)));
    }
    for run in runs {
        let frames = (0..nodes.len()).map(|rank| match run.nodes.get(rank) {
            None => "–".to_owned(),
            Some(node) if node.is_lost => format!("{} (lost)", node.frames),
            Some(node) => node.frames.to_string(),
        });
        let deviation = format!("{:.1}", run.deviation);
        let row = [run.name().to_owned()].into_iter().chain(frames);
        table.add(row.chain([deviation, format!("{:.4}", run.deviation_of_2n)]));
    }
    Section {
        title: format!("Frames of each worker: {}", name_of(clip)),
        table: Some(table.whole()),
        ..Section::default()
    }
}

/// Whether the workers of a run were as fast as these.
fn has_speeds_of(run: &Figures, nodes: &[Node]) -> bool {
    let is_near = |one: f64, other: f64| (one - other).abs() <= 1e-3 * one.max(other);
    let mut pairs = run.nodes.iter().zip(nodes);
    run.nodes.len() == nodes.len()
        && pairs.all(|(one, other)| match (one.needs_s, other.needs_s) {
            (Some(one), Some(other)) => is_near(one, other),
            (one, other) => one == other,
        })
}

/// Figure 3: the time of each worker, for runs of one clip.
fn workers(clip: Clip, runs: &[&Figures]) -> Section {
    let chart = |run: &&Figures| {
        let row = |node: &Node| Bar {
            name: node.name.clone(),
            parts: vec![node.processing_s, node.waiting_s],
            mark: None,
        };
        Bars {
            title: run.name().to_owned(),
            unit: "s".to_owned(),
            parts: vec!["processing".to_owned(), "waiting".to_owned()],
            mark: None,
            rows: run.nodes.iter().map(row).collect(),
        }
    };
    Section {
        title: format!("Processing and waiting: {}", name_of(clip)),
        bars: runs.iter().map(chart).collect(),
        ..Section::default()
    }
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
            ..Figures::default()
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
        let absent = ("zmq-push".to_owned(), "apt-get install gcc".to_owned());
        write(&path, &runs, Some(&picture(&frame)), &[absent]).unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        for part in [
            "3 runs",
            "HD, 1920 × 1080, 41 frames",
            "99 × 1080, 41 frames",
            "of all 2 runs, bit by bit",
            "ms per frame",
            "<td>100.0</td>",
            "Did not run",
            "apt-get install gcc",
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
        write(&path, &[], None, &[]).unwrap();
        write(&path, &runs[..1], None, &[]).unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(page.contains("41 frames of 1920 × 1080"), "{page}");
        assert!(!page.contains("Did not run"), "{page}");
    }

    #[test]
    fn a_page_names_runs_that_differ() {
        let mut runs = [run("dsm", 1920, 2.5), run("req-rep", 1920, 4.0)];
        let detail = |runs: &[Figures]| {
            let runs: Vec<&Figures> = runs.iter().collect();
            let check = check_of(clip_of(runs[0]), &runs);
            (check.passed, check.detail)
        };
        runs[1].label = Some("two servers".to_owned());
        runs[1].verified = None;
        assert_eq!(
            detail(&runs),
            (None, "not compared: two servers".to_owned())
        );
        runs[0].verified = Some(false);
        assert_eq!(detail(&runs), (Some(false), "different: dsm".to_owned()));
        // Of workers of other speeds, there is no common ideal.
        assert!(has_speeds_of(&runs[0], &runs[1].nodes));
        runs[0].nodes[1].needs_s = Some(0.11);
        assert!(!has_speeds_of(&runs[0], &runs[1].nodes));
        let text = text(&runs);
        assert!(
            text.contains("two servers") && text.contains("2.50 s"),
            "{text}"
        );
    }

    #[test]
    fn a_folder_stands_for_its_runs() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b", "a", "empty"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let figures = |name: &str| folder.path().join(name).join(FIGURES);
        std::fs::write(figures("b"), "").unwrap();
        std::fs::write(figures("a"), "").unwrap();
        std::fs::write(folder.path().join("page.html"), "").unwrap();
        let found = files_in(folder.path()).unwrap();
        assert_eq!(found, [figures("a"), figures("b")]);
        assert!(files_in(&folder.path().join("page.html")).is_err());
    }
}
