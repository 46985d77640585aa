//! A unit's part of a file: read, sorted with the others, written.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use samite::pgas::{self, Max, Pgas, Sum};

use super::file;
use crate::Error;
use crate::spread::Blocks;

/// Records of one kind at one unit.
pub trait Records: Default {
    /// Moves the borders of a part of a file to those of records. Adjacent parts have every record
    /// once.
    fn borders(file: &File, bytes: Range<u64>, size: u64) -> io::Result<Range<u64>>;

    /// Decodes the records in the bytes of a file.
    fn parse(bytes: Vec<u8>) -> Self;

    /// Encodes the records.
    fn bytes(&self) -> Vec<u8>;

    /// Sorts the records of all units: afterwards, those of each unit are sorted and follow those
    /// of the lower ranks. Collective.
    fn sort(&mut self, pgas: &Pgas) -> pgas::Result<()>;
}

/// A part of a file.
#[derive(Debug, Default)]
pub struct Part<R> {
    records: R,
    file_bytes: u64,
}

impl<R: Records> Part<R> {
    /// Reads the part of this unit. Collective; an error of one unit is an error at all.
    pub fn read(pgas: &Pgas, path: &Path) -> Result<Self, Error> {
        let (me, units) = (pgas.me().0, pgas.units());
        let read = || {
            let file = File::open(path)?;
            let size = file.metadata()?.len();
            let bytes = R::borders(&file, Blocks::new(size, units).part(me), size)?;
            Ok(Part {
                records: R::parse(file::read(&file, bytes)?),
                file_bytes: size,
            })
        };
        agree(
            pgas,
            "read its part",
            read().map_err(Error::file(path, "read")),
        )
    }

    /// Returns the bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Sorts the records of all parts. Collective.
    pub fn sort(&mut self, pgas: &Pgas) -> Result<(), Error> {
        Ok(self.records.sort(pgas)?)
    }

    /// Writes all parts, by rank, to a new file. Collective; an error of one unit is an error at
    /// all.
    pub fn write(&self, pgas: &Pgas, path: &Path) -> Result<(), Error> {
        let bytes = self.records.bytes();
        let mut begin = [0];
        pgas.world()
            .exscan(&[bytes.len() as u64], &mut begin, Sum)?;
        let create = || match pgas.me().0 {
            0 => File::create(path).map(drop),
            _ => Ok(()),
        };
        let failed = |result: io::Result<()>| result.map_err(Error::file(path, "written"));
        agree(pgas, "create the file", failed(create()))?;
        let write = || {
            OpenOptions::new()
                .write(true)
                .open(path)?
                .write_all_at(&bytes, begin[0])
        };
        agree(pgas, "write its part", failed(write()))
    }
}

/// Returns a result if all units succeeded. Collective.
pub(super) fn agree<T>(
    pgas: &Pgas,
    what: &'static str,
    result: Result<T, Error>,
) -> Result<T, Error> {
    let mut failed = [1];
    pgas.world()
        .all_reduce(&[u64::from(result.is_err())], &mut failed, Max)?;
    match failed {
        [0] => result,
        _ => Err(result.err().unwrap_or(Error::Elsewhere(what))),
    }
}
