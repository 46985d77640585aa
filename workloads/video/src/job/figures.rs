//! What a run was like, and how fast it could have been: the figures of `--figures FILE`.
//!
//! The file is one JSON object. Times are in seconds.
//!
//! | key | content |
//! |---|---|
//! | `format` | `"samite-video/1"` |
//! | `via` | how frames moved, as on the command line (`"dsm"`, `"req-rep"`, ...); of another system, its name |
//! | `label` | what the run is called on pages; null: as `via` says |
//! | `servers` | the servers of chunks; null where frames are messages |
//! | `kernel` | `"sobel"`, `"laplacian"`, `"copy"` |
//! | `width`, `height`, `frames` | the clip |
//! | `pace` | `"none"`: workers as fast as they are; `"sleep"`, `"quota"`: boards, see [`super::nodes`] |
//! | `wall_s` | from the first frame to the last one written |
//! | `bounds` | `{decode_s, compute_s, link_s, encode_s}`: lower bounds of the time; `link_s` is null if no rate was given |
//! | `ideal_s`, `binds` | the largest bound, and its name: `"decode"`, `"compute"`, `"link"` or `"encode"` |
//! | `efficiency` | `ideal_s / wall_s` |
//! | `deviation`, `deviation_of_2n` | the sum over all workers of the distance between their frames and those of an ideal run, and the same divided by twice the frames |
//! | `messages_per_frame` | of the job, without the header and the figures themselves |
//! | `nodes` | one object per worker, by rank: `name`, `frames`, `ideal_frames`, `needs_s` (for a frame), `processing_s`, `waiting_s`, `late_frames` (the kernel took longer than the board), `is_lost` |
//! | `checksum` | of all frames: 16 hexadecimal digits |
//! | `verified` | whether all frames are those of a sequential run; null if it was not asked |
//!
//! The bounds: `decode_s` is the time in reading frames, `encode_s` that of the sink for all
//! frames, both as measured in this run, where the workers use the same processors; `link_s` the
//! bytes of all frames over the rate of the link (each way), and `compute_s` the time that all
//! workers together need if none ever waits, `frames / sum(1 / needs_s)`.

use super::measured::Measured;
use super::nodes::TABLE;
use super::{Error, Header, Result};
use crate::Size;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The name of the format.
const FORMAT: &str = "samite-video/1";

/// What a run was like.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the table of this file says what they are")]
pub struct Figures {
    pub format: String,
    pub via: String,
    #[serde(default)]
    pub label: Option<String>,
    #[serde(default)]
    pub servers: Option<u64>,
    pub kernel: String,
    pub width: u64,
    pub height: u64,
    pub frames: u64,
    pub pace: String,
    pub wall_s: f64,
    pub bounds: Bounds,
    pub ideal_s: f64,
    pub binds: String,
    pub efficiency: f64,
    pub deviation: f64,
    pub deviation_of_2n: f64,
    pub messages_per_frame: f64,
    pub nodes: Vec<Node>,
    pub checksum: String,
    pub verified: Option<bool>,
}

/// Lower bounds of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the table of this file says what they are")]
pub struct Bounds {
    pub decode_s: f64,
    pub compute_s: f64,
    pub link_s: Option<f64>,
    pub encode_s: f64,
}

/// What a worker did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the table of this file says what they are")]
pub struct Node {
    pub name: String,
    pub frames: u64,
    pub ideal_frames: f64,
    pub needs_s: Option<f64>,
    pub processing_s: f64,
    pub waiting_s: f64,
    pub late_frames: u64,
    pub is_lost: bool,
}

impl Bounds {
    /// Returns all of them, with their names.
    pub fn all(&self) -> [(&'static str, Option<f64>); 4] {
        [
            ("decode", Some(self.decode_s)),
            ("compute", Some(self.compute_s)),
            ("link", self.link_s),
            ("encode", Some(self.encode_s)),
        ]
    }

    /// Returns the one that binds: the largest.
    pub fn binding(&self) -> (&'static str, f64) {
        let known = self.all().into_iter();
        let known = known.filter_map(|(name, bound)| Some((name, bound?)));
        let largest = known.max_by(|one, other| one.1.total_cmp(&other.1));
        largest.unwrap_or_default()
    }
}

/// What the sink knows at the end of a run.
#[derive(Clone, Debug)]
pub(super) struct Run<'a> {
    pub(super) via: String,
    pub(super) label: Option<String>,
    pub(super) servers: Option<u64>,
    pub(super) kernel: &'a str,
    pub(super) header: Header,
    pub(super) frames: u64,
    pub(super) checksum: u64,
    pub(super) wall_s: f64,
    pub(super) encode_s: f64,
    /// Bytes per second, of the link of the sink and the source.
    pub(super) link: Option<f64>,
    pub(super) source: &'a Measured,
    /// What each worker said last, and how many of its frames have come.
    pub(super) workers: Vec<(Measured, u64)>,
    pub(super) messages: u64,
}

impl Run<'_> {
    pub(super) fn figures(&self) -> Figures {
        let workers = self.workers.iter().enumerate();
        let nodes = workers.map(|(rank, (worker, frames))| Node {
            name: worker
                .board
                .clone()
                .unwrap_or_else(|| format!("worker {rank}")),
            frames: *frames,
            ideal_frames: 0.0,
            needs_s: worker.needs_s(),
            processing_s: worker.processing_s,
            waiting_s: worker.waiting_s,
            late_frames: worker.late_frames,
            is_lost: !worker.is_last,
        });
        let frames = self.frames as f64;
        let bytes = self.header.size.pixels() as f64 * frames;
        let pace = self.workers.iter().map(|(worker, _)| &*worker.pace);
        let figures = Figures {
            format: FORMAT.to_owned(),
            via: self.via.clone(),
            label: self.label.clone(),
            servers: self.servers,
            kernel: self.kernel.to_owned(),
            width: self.header.size.width() as u64,
            height: self.header.size.height() as u64,
            frames: self.frames,
            pace: pace.max().unwrap_or("none").to_owned(),
            wall_s: self.wall_s,
            bounds: Bounds {
                decode_s: self.source.decode_s,
                compute_s: 0.0,
                link_s: self.link.map(|rate| bytes / rate),
                encode_s: self.encode_s,
            },
            messages_per_frame: self.messages as f64 / frames.max(1.0),
            nodes: nodes.collect(),
            checksum: format!("{:016x}", self.checksum),
            ..Figures::default()
        };
        figures.derived()
    }
}

/// What another system says of its run of a clip, with keys as above.
#[derive(Clone, Debug, Deserialize)]
struct OfPeer {
    wall_s: f64,
    decode_s: f64,
    encode_s: f64,
    messages_per_frame: f64,
    checksum: String,
    nodes: Vec<NodeOfPeer>,
}

#[derive(Clone, Debug, Deserialize)]
struct NodeOfPeer {
    frames: u64,
    needs_s: f64,
    processing_s: f64,
    waiting_s: f64,
    late_frames: u64,
}

impl Figures {
    /// Returns them with all that follows from what was measured.
    fn derived(mut self) -> Figures {
        let frames = self.frames as f64;
        let speed = |node: &Node| {
            node.needs_s
                .filter(|needs| *needs > 0.0)
                .map_or(0.0, f64::recip)
        };
        let all: f64 = self.nodes.iter().map(speed).sum();
        self.bounds.compute_s = if all > 0.0 { frames / all } else { 0.0 };
        for node in &mut self.nodes {
            node.ideal_frames = self.bounds.compute_s * speed(node);
        }
        let deviation = self.nodes.iter();
        let deviation = deviation.map(|node| (node.frames as f64 - node.ideal_frames).abs());
        self.deviation = deviation.sum();
        self.deviation_of_2n = self.deviation / (2.0 * frames.max(1.0));
        let (binds, ideal_s) = self.bounds.binding();
        (self.binds, self.ideal_s) = (binds.to_owned(), ideal_s);
        self.efficiency = ideal_s / self.wall_s;
        self
    }

    /// Reads those of Samite from a text.
    ///
    /// # Errors
    /// [`Error::Figures`] if it holds something else. `whose`: what the error names.
    pub fn parse(text: &str, whose: &Path) -> Result<Figures> {
        let figures: Figures =
            serde_json::from_str(text).map_err(|error| wrong(whose, error.to_string()))?;
        match &*figures.format {
            FORMAT => Ok(figures),
            other => Err(wrong(whose, format!("its format is {other}, not {FORMAT}"))),
        }
    }

    /// Completes what another system says of its run of a generated clip by [`Kernel::Sobel`], on
    /// nodes that sleep, whose output it has compared with that of a sequential run: `wall_s`,
    /// `decode_s`, `encode_s`, `messages_per_frame`, `checksum`, and of `nodes` `frames`,
    /// `needs_s`, `processing_s`, `waiting_s`, `late_frames`.
    ///
    /// # Errors
    /// [`Error::Figures`] if it says something else.
    ///
    /// [`Kernel::Sobel`]: crate::Kernel::Sobel
    pub fn of_peer(name: &str, size: Size, frames: u64, said: &str) -> Result<Figures> {
        let said: OfPeer =
            serde_json::from_str(said).map_err(|error| wrong(name.as_ref(), error.to_string()))?;
        let node = |(rank, node): (usize, NodeOfPeer)| Node {
            name: TABLE
                .get(rank)
                .map_or_else(|| format!("worker {rank}"), |board| board.name().to_owned()),
            frames: node.frames,
            needs_s: Some(node.needs_s),
            processing_s: node.processing_s,
            waiting_s: node.waiting_s,
            late_frames: node.late_frames,
            ..Node::default()
        };
        let figures = Figures {
            format: FORMAT.to_owned(),
            via: name.to_owned(),
            kernel: "sobel".to_owned(),
            width: size.width() as u64,
            height: size.height() as u64,
            frames,
            pace: "sleep".to_owned(),
            wall_s: said.wall_s,
            bounds: Bounds {
                decode_s: said.decode_s,
                encode_s: said.encode_s,
                ..Bounds::default()
            },
            messages_per_frame: said.messages_per_frame,
            nodes: said.nodes.into_iter().enumerate().map(node).collect(),
            checksum: said.checksum,
            verified: Some(true),
            ..Figures::default()
        };
        Ok(figures.derived())
    }

    /// What the run is called on a page.
    pub(super) fn name(&self) -> &str {
        self.label.as_deref().unwrap_or(&self.via)
    }

    /// Writes them to a file.
    ///
    /// # Errors
    /// [`Error::Video`] if it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from)?;
        samite_report::replace(path, text + "\n").map_err(|source| file(path, "written", source))
    }

    /// Reads them from a file.
    ///
    /// # Errors
    /// [`Error::Video`] if it cannot be read, [`Error::Figures`] if it holds something else.
    pub fn read(path: &Path) -> Result<Figures> {
        let text = std::fs::read_to_string(path).map_err(|source| file(path, "read", source))?;
        Figures::parse(&text, path)
    }
}

fn wrong(path: &Path, why: String) -> Error {
    let path = path.to_path_buf();
    Error::Figures { path, why }
}

fn file(path: &Path, doing: &'static str, source: std::io::Error) -> Error {
    let path = path.to_path_buf();
    Error::Video(crate::Error::File {
        path,
        doing,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(needs_s: f64, frames: u64) -> (Measured, u64) {
        let measured = Measured {
            frames,
            processing_s: needs_s * frames as f64,
            is_last: true,
            ..Measured::default()
        };
        (measured, frames)
    }

    #[test]
    fn the_largest_bound_is_the_ideal() {
        let source = Measured {
            decode_s: 1.0,
            ..Measured::default()
        };
        let run = Run {
            via: "dsm".to_owned(),
            label: None,
            servers: Some(1),
            kernel: "sobel",
            header: Header {
                size: Size::new(10, 10).unwrap(),
                rate: crate::y4m::Rate::default(),
            },
            frames: 30,
            checksum: 1,
            wall_s: 4.0,
            encode_s: 0.5,
            link: None,
            source: &source,
            workers: vec![worker(0.1, 22), worker(0.2, 8)],
            messages: 240,
        };
        // 20 frames of the first worker and 10 of the second take 2 s.
        let figures = run.figures();
        assert!((figures.bounds.compute_s - 2.0).abs() < 1e-9);
        assert_eq!((&*figures.binds, figures.bounds.link_s), ("compute", None));
        assert!((figures.efficiency - 0.5).abs() < 1e-9);
        assert!((figures.deviation - 4.0).abs() < 1e-9);
        assert!((figures.deviation_of_2n - 4.0 / 60.0).abs() < 1e-9);
        assert_eq!(figures.messages_per_frame, 8.0);
        let slow = Run {
            link: Some(1000.0),
            ..run
        };
        let figures = slow.figures();
        assert_eq!((&*figures.binds, figures.ideal_s), ("link", 3.0));

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("figures.json");
        figures.write(&path).unwrap();
        assert_eq!(Figures::read(&path).unwrap(), figures);
        std::fs::write(&path, "{}").unwrap();
        assert!(matches!(Figures::read(&path), Err(Error::Figures { .. })));
        let other = serde_json::to_string(&figures)
            .unwrap()
            .replace(FORMAT, "other/1");
        std::fs::write(&path, other).unwrap();
        assert!(matches!(Figures::read(&path), Err(Error::Figures { .. })));
    }

    #[test]
    fn what_a_peer_says_is_completed() {
        let said = r#"{"wall_s":4.0,"decode_s":0,"encode_s":0.5,"messages_per_frame":3,
            "checksum":"0123","nodes":[
            {"frames":22,"needs_s":0.1,"processing_s":2.3,"waiting_s":1.5,"late_frames":0},
            {"frames":8,"needs_s":0.2,"processing_s":1.6,"waiting_s":2.3,"late_frames":1}]}"#;
        let figures = Figures::of_peer("zmq-push", Size::HD, 30, said).unwrap();
        // 20 frames of the first node and 10 of the second take 2 s.
        assert!((figures.ideal_s - 2.0).abs() < 1e-9 && figures.binds == "compute");
        assert!((figures.deviation - 4.0).abs() < 1e-9);
        assert_eq!(figures.nodes[1].name, "TX2");
        assert_eq!(
            (figures.nodes[1].late_frames, figures.verified),
            (1, Some(true))
        );
        // It is as if Samite had written it.
        let text = serde_json::to_string(&figures).unwrap();
        let read = Figures::parse(&text, "zmq".as_ref()).unwrap();
        assert_eq!(read, figures);
        for wrong in ["{}", "1.5", &said.replace("\"frames\":8", "\"frames\":-8")] {
            let read = Figures::of_peer("zmq-push", Size::HD, 30, wrong);
            assert!(matches!(read, Err(Error::Figures { .. })), "{wrong}");
        }
    }

    /// Files without the newer keys can still be read.
    #[test]
    fn figures_without_a_label_are_read() {
        let figures = Figures {
            format: FORMAT.to_owned(),
            ..Figures::default()
        };
        let mut json = serde_json::to_value(&figures).unwrap();
        let keys = json.as_object_mut().unwrap();
        assert!(keys.remove("label").is_some() && keys.remove("servers").is_some());
        let read = Figures::parse(&json.to_string(), "old".as_ref());
        assert_eq!(read.unwrap(), figures);
    }

    #[test]
    fn a_run_of_no_frames_has_figures() {
        let source = Measured::default();
        let header = Header {
            size: Size::HD,
            rate: crate::y4m::Rate::default(),
        };
        let run = Run {
            via: String::new(),
            label: None,
            servers: None,
            kernel: "copy",
            header,
            frames: 0,
            checksum: 0,
            wall_s: 1.0,
            encode_s: 0.0,
            link: None,
            source: &source,
            workers: vec![worker(0.0, 0)],
            messages: 0,
        };
        let figures = run.figures();
        assert_eq!((figures.ideal_s, figures.deviation), (0.0, 0.0));
    }
}
