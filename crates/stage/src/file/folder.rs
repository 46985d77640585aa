//! The files in the folder of a stream, and which of them belong together.

use super::error::{FileError, io};
use super::frame::{Frames, Head};
use super::{Header, MOST_RANKS, scan};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

/// A file of a rank.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) rank: u32,
    pub(super) frames: Frames,
    /// `None` if it has no complete header (yet).
    pub(super) header: Result<Option<(Head, Header)>, FileError>,
    changed: SystemTime,
}

/// The ranks with files of one life of a stream in one run. It holds none of these files open: a
/// process may have few descriptors.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) header: Header,
    pub(super) ranks: BTreeSet<u32>,
    changed: SystemTime,
}

impl Life {
    fn is_whole(&self) -> bool {
        self.ranks.len() as u64 == u64::from(self.header.ranks)
    }
}

/// Returns the files of all ranks, of any run. Each is opened when the iterator reaches it: a
/// folder may have more files than a process may open.
///
/// # Errors
/// The folder, or a file in it, cannot be read.
pub(super) fn files_of(
    folder: &Path,
) -> Result<impl Iterator<Item = Result<Found, FileError>> + '_, FileError> {
    let entries = std::fs::read_dir(folder).map_err(io("list", folder))?;
    Ok(entries.filter_map(|entry| {
        let name = match entry.map_err(io("list", folder)) {
            Ok(entry) => entry.file_name(),
            Err(error) => return Some(Err(error)),
        };
        found(folder, rank_of(name.to_str()?)?).transpose()
    }))
}

/// Returns the rank whose file has this name.
fn rank_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("rank-")?.strip_suffix(".samite")?;
    let rank: u32 = digits.parse().ok()?;
    (name == format!("rank-{rank}.samite")).then_some(rank)
}

/// Opens the file of a rank; `None` if it was just removed.
pub(super) fn found(folder: &Path, rank: u32) -> Result<Option<Found>, FileError> {
    let path = super::file_of(folder, rank);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io("open", &path)(error)),
    };
    let metadata = file.metadata().map_err(io("inspect", &path))?;
    let frames = Frames::new(file, &path);
    Ok(Some(Found {
        rank,
        header: header_of(&frames, rank),
        frames,
        changed: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
    }))
}

fn header_of(frames: &Frames, rank: u32) -> Result<Option<(Head, Header)>, FileError> {
    let Some((head, header)) = scan::header(frames)? else {
        return Ok(None);
    };
    if header.ranks > MOST_RANKS {
        return Err(frames.corrupt(0, "it has more ranks than any stream"));
    }
    if header.rank != rank || rank >= header.ranks {
        return Err(FileError::Stranger {
            path: frames.path.clone(),
            found: header.name(),
            wanted: format!("rank {rank}"),
        });
    }
    Ok(Some((head, header)))
}

/// Returns the newest life of this run. Without a run, returns the life with the files of all its
/// ranks (there is at most one), or else the newest.
///
/// # Errors
/// There is none (yet); ranks that belong to different streams; without a run, a damaged file that
/// belongs to it.
pub(super) fn life_of(folder: &Path, run: Option<u64>) -> Result<Life, FileError> {
    let mut lives: BTreeMap<(u64, u32), Life> = BTreeMap::new();
    let mut damaged = Vec::new();
    for found in files_of(folder)? {
        let found = found?;
        let header = match found.header {
            Ok(Some((_, header))) => header,
            Ok(None) => continue,
            Err(error @ FileError::Io { .. }) => return Err(error),
            Err(error) => {
                damaged.push((found.rank, error));
                continue;
            }
        };
        // Group the files by life; all of one life must agree on the stream.
        if run.is_some_and(|run| run != header.run) {
            continue;
        }
        let of = (header.run, header.life);
        let life = lives.entry(of).or_insert_with(|| Life {
            header: header.clone(),
            ranks: BTreeSet::new(),
            changed: found.changed,
        });
        if (&header.stream, header.ranks) != (&life.header.stream, life.header.ranks) {
            return Err(FileError::Stranger {
                path: found.frames.path,
                found: header.name(),
                wanted: life.header.name(),
            });
        }
        life.changed = life.changed.max(found.changed);
        life.ranks.insert(found.rank);
    }
    let lives = lives.into_values();
    let best = match run {
        Some(_) => lives.max_by_key(|life| life.header.life),
        None => lives.max_by_key(|life| (life.is_whole(), life.changed)),
    };
    let ranks = best.as_ref().map_or(u32::MAX, |life| life.header.ranks);
    let has = |rank| best.as_ref().is_some_and(|life| life.ranks.contains(&rank));
    // A damaged file matters only if the life needs the rank and has no other file of it.
    let wrong = damaged
        .into_iter()
        .find(|(rank, _)| *rank < ranks && !has(*rank));
    match (best, wrong) {
        (_, Some((_, error))) if run.is_none() => Err(error),
        (Some(life), _) => Ok(life),
        (None, _) => Err(FileError::NotAStream {
            path: folder.to_owned(),
        }),
    }
}
