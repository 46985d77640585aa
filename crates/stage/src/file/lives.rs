//! What a writer needs to know of the other files in its folder: which life of the stream they
//! belong to, and what older runs have left.

use super::claim::{Claim, Turn};
use super::error::FileError;
use super::folder::files_of;
use super::frame::{ALIGN, Frames, Kind};
use std::fs;
use std::path::Path;

/// Returns the life of the stream in this run: that of its other ranks. For `rank` of `ranks` that
/// begins it, it is later than the previous one of that rank, and than any with another number of
/// ranks.
///
/// # Errors
/// The system refuses to read a file: the life is unknown. A damaged file is ignored: it belongs to
/// an older run.
pub(super) fn life(folder: &Path, run: u64, of: Option<(u32, u32)>) -> Result<u32, FileError> {
    let mut life = 0;
    for file in files_of(folder)? {
        let header = match file?.header {
            Ok(Some((_, header))) if header.run == run => header,
            Ok(_) => continue,
            Err(error @ FileError::Io { .. }) => return Err(error),
            Err(_) => continue,
        };
        let is_earlier =
            of.is_some_and(|(rank, ranks)| header.rank == rank || header.ranks != ranks);
        life = life.max(header.life.saturating_add(is_earlier.into()));
    }
    Ok(life)
}

/// Removes the files of older runs with more ranks: they are useless without the others.
pub(super) fn remove_beyond(folder: &Path, run: u64, ranks: u32) {
    let stays = |error: &dyn std::fmt::Display| {
        tracing::warn!(folder = %folder.display(), %error, "a file of an older run may stay");
    };
    let files = match files_of(folder) {
        Ok(files) => files,
        Err(error) => return stays(&error),
    };
    for file in files {
        let file = match file {
            Ok(file) => file,
            Err(error) => {
                stays(&error);
                continue;
            }
        };
        let is_older = matches!(&file.header, Ok(Some((_, header))) if header.run != run);
        if file.rank >= ranks
            && is_older
            && let Err(error) = remove(folder, &file.frames, file.rank)
        {
            stays(&error);
        }
    }
}

/// Removes this file of a rank, if no process writes it; never a file that another process has put
/// in its place.
fn remove(folder: &Path, frames: &Frames, rank: u32) -> Result<(), FileError> {
    let _turn = Turn::take(folder, rank)?;
    let claim = Claim::of(frames.clone(), rank)?;
    match claim.frames.is_at(&frames.path)? {
        true => fs::remove_file(&frames.path).map_err(super::error::io("remove", &frames.path)),
        false => Ok(()),
    }
}

/// Returns true if the last frame is an end, without reading the others.
pub(super) fn is_ended(frames: &Frames) -> Result<bool, FileError> {
    let at = frames.length()?.checked_sub(2 * ALIGN);
    let last = at.map_or(Ok(None), |at| frames.head(at))?;
    Ok(last.is_some_and(|head| head.kind == Kind::End))
}
