//! The contents of a file, determined without the code that sorts: the file is read again, record
//! by record, through a buffer.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use clap::ValueEnum;
use samite::pgas::{Pgas, Sum};

use super::checksum::Checksum;
use crate::Error;

/// The records of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Lines of a text, compared byte by byte
    Lines,
    /// Unsigned numbers of 64 bits, little-endian
    U64,
}

/// The contents of a file, or of a part of it. Sums of parts are those of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The records, without their order.
    pub records: Checksum,
    /// Bytes of the records, without separators.
    pub bytes: u64,
    /// Bytes of the file that were read; all of them if no record was omitted.
    looked_at: u64,
    /// Records that are smaller than their predecessor.
    pub steps_down: u64,
}

impl Contents {
    /// Returns the contents of a whole file: every unit reads the records that begin in its even
    /// share of the bytes. Collective; an error of one unit is an error at all.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Wrong`] if the shares do not add up to the file.
    pub fn of(pgas: &Pgas, path: &Path, kind: Kind) -> Result<Contents, Error> {
        let (me, units) = (u128::from(pgas.me().0), u128::from(pgas.units()));
        let look = || {
            let size = std::fs::metadata(path)?.len();
            let border = |unit: u128| (u128::from(size) * unit / units) as u64;
            let seen = Contents::of_part(path, kind, border(me)..border(me + 1))?;
            Ok((seen, size))
        };
        let looked = look().map_err(Error::file(path, "read"));
        let (own, size) = super::part::agree(pgas, "read its part", looked)?;
        let mut all = [0; 6];
        pgas.world().all_reduce(&own.words(), &mut all, Sum)?;
        let all = Contents::from_words(all);
        if all.looked_at != size {
            let (seen, path) = (all.looked_at, path.display());
            return Err(Error::Wrong(format!(
                "{seen} of {size} bytes of {path} were read again"
            )));
        }
        Ok(all)
    }

    /// Returns the contents of the records that begin in a range of bytes.
    fn of_part(path: &Path, kind: Kind, range: Range<u64>) -> io::Result<Contents> {
        let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
        let (mut contents, mut record) = (Contents::default(), Vec::new());
        let mut at = kind.seek(&mut file, range.start)?;
        let mut before: Option<Vec<u8>> = None;
        // The record after the last one is read only for its order.
        loop {
            let length = kind.read(&mut file, &mut record)?;
            if length == 0 {
                break;
            }
            let is_lower = before.as_ref().is_some_and(|before| record < *before);
            contents.steps_down += u64::from(is_lower);
            if at >= range.end {
                break;
            }
            contents.records = contents.records.plus(Checksum::of([&record]));
            contents.bytes += record.len() as u64;
            contents.looked_at += length;
            at += length;
            std::mem::swap(before.get_or_insert_default(), &mut record);
        }
        Ok(contents)
    }

    fn words(self) -> [u64; 6] {
        let [records, sum, squares] = self.records.words();
        let [bytes, looked_at, steps_down] = [self.bytes, self.looked_at, self.steps_down];
        [records, sum, squares, bytes, looked_at, steps_down]
    }

    fn from_words([records, sum, squares, bytes, looked_at, steps_down]: [u64; 6]) -> Contents {
        Contents {
            records: Checksum::from_words([records, sum, squares]),
            bytes,
            looked_at,
            steps_down,
        }
    }

    /// Checks that these are the sorted contents of `input`; the error says what differs.
    ///
    /// # Errors
    /// [`Error::Wrong`].
    pub fn is_sorted_from(&self, input: &Contents) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Wrong(what));
        let (ours, theirs) = (self.records.records, input.records.records);
        if ours != theirs {
            return wrong(format!("{ours} records, and {theirs} in the input"));
        }
        if self.bytes != input.bytes {
            let (ours, theirs) = (self.bytes, input.bytes);
            return wrong(format!(
                "records of {ours} bytes, and of {theirs} in the input"
            ));
        }
        if self.records != input.records {
            return wrong("the records are not those of the input".into());
        }
        match self.steps_down {
            0 => Ok(()),
            places => wrong(format!("not in order at {places} places")),
        }
    }
}

/// Bytes of a number.
const WORD: u64 = 8;

impl Kind {
    /// Seeks the first record that does not begin before `from`; returns its offset.
    fn seek(self, file: &mut BufReader<File>, from: u64) -> io::Result<u64> {
        match self {
            Kind::U64 => file.seek(SeekFrom::Start(from.next_multiple_of(WORD))),
            Kind::Lines if from == 0 => Ok(0),
            Kind::Lines => {
                // The byte before it shows whether a line begins exactly there.
                let before = file.seek(SeekFrom::Start(from - 1))?;
                Ok(before + file.skip_until(b'\n')? as u64)
            }
        }
    }

    /// Reads the next record, as bytes with the same order. Returns its number of bytes in the
    /// file, 0 at the end.
    fn read(self, file: &mut BufReader<File>, record: &mut Vec<u8>) -> io::Result<u64> {
        record.clear();
        match self {
            Kind::Lines => {
                let length = file.read_until(b'\n', record)?;
                record.pop_if(|last| *last == b'\n');
                Ok(length as u64)
            }
            Kind::U64 => {
                let length = file.take(WORD).read_to_end(record)?;
                record.reverse();
                Ok(length as u64)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(kind: Kind, bytes: &[u8], parts: u64) -> Contents {
        let folder = tempfile::tempdir().unwrap();
        let (path, size) = (folder.path().join("file"), bytes.len() as u64);
        std::fs::write(&path, bytes).unwrap();
        let border = |part| size * part / parts;
        let of = |part| Contents::of_part(&path, kind, border(part)..border(part + 1)).unwrap();
        let words = (0..parts).map(|part| of(part).words());
        let sum = |all: [u64; 6], part: [u64; 6]| {
            std::array::from_fn(|at| all[at].wrapping_add(part[at]))
        };
        Contents::from_words(words.fold([0; 6], sum))
    }

    #[test]
    fn any_parts_see_the_whole() {
        let long = [&b"y\n"[..], &b"x".repeat(5000), b"\nz"].concat();
        for text in [&b""[..], b"\n", b"a", b"b\na\n\na\nc", b"a\nb\n", &long] {
            let lines = text.split_inclusive(|byte| *byte == b'\n');
            let lines: Vec<&[u8]> = lines
                .map(|line| line.strip_suffix(b"\n").unwrap_or(line))
                .collect();
            let down = lines.windows(2).filter(|pair| pair[1] < pair[0]).count() as u64;
            for parts in 1..9 {
                let seen = contents(Kind::Lines, text, parts);
                assert_eq!(seen.records.records, lines.len() as u64);
                assert_eq!(
                    seen.bytes,
                    lines.iter().map(|line| line.len() as u64).sum::<u64>()
                );
                assert_eq!((seen.looked_at, seen.steps_down), (text.len() as u64, down));
                assert_eq!(seen, contents(Kind::Lines, text, 1));
            }
        }
        let words: Vec<u8> = [3u64, 256, 1, 1 << 60]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        for parts in 1..9 {
            let seen = contents(Kind::U64, &words, parts);
            assert_eq!(
                (seen.records.records, seen.looked_at, seen.steps_down),
                (4, 32, 1)
            );
        }
    }

    #[test]
    fn every_wrong_result_is_found() {
        let of = |text: &[u8]| contents(Kind::Lines, text, 3);
        let input = of(b"pear\napple\nquince\napple");
        let judged = |text: &[u8]| {
            of(text)
                .is_sorted_from(&input)
                .map_err(|error| error.to_string())
        };
        assert_eq!(judged(b"apple\napple\npear\nquince\n"), Ok(()));
        for (wrong, why) in [
            (
                &b"apple\npear\nquince\n"[..],
                "3 records, and 4 in the input",
            ),
            (
                b"apple\napple\npea\nquince\n",
                "records of 19 bytes, and of 20 in the input",
            ),
            (
                b"apple\napple\npeas\nquince\n",
                "the records are not those of the input",
            ),
            (b"apple\nquince\napple\npear\n", "not in order at 1 places"),
            (b"", "0 records, and 4 in the input"),
        ] {
            let said = judged(wrong).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
