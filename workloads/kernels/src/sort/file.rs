//! Parts of a file, each read or written by one unit.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bytes that are searched for the end of a line at a time.
const LOOK: usize = 4096;

/// Reads these bytes.
pub(super) fn read(file: &File, bytes: Range<u64>) -> io::Result<Vec<u8>> {
    let mut part = vec![0; bytes.end.saturating_sub(bytes.start) as usize];
    file.read_exact_at(&mut part, bytes.start)?;
    Ok(part)
}

/// Moves the borders of a part to the borders of lines: a line belongs to the part that contains
/// its first byte, so adjacent parts have every line once.
pub(super) fn whole_lines(file: &File, bytes: Range<u64>, size: u64) -> io::Result<Range<u64>> {
    Ok(line_from(file, bytes.start, size)?..line_from(file, bytes.end, size)?)
}

/// Returns where the first line begins that does not begin before `at`.
fn line_from(file: &File, at: u64, size: u64) -> io::Result<u64> {
    // The byte before it shows whether a line begins exactly there.
    let Some(mut place) = at.checked_sub(1) else {
        return Ok(0);
    };
    let mut window = [0; LOOK];
    while place < size {
        let got = file.read_at(&mut window, place)?;
        if let Some(newline) = window[..got].iter().position(|byte| *byte == b'\n') {
            return Ok(place + newline as u64 + 1);
        }
        if got == 0 {
            break;
        }
        place += got as u64;
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(text: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        file
    }

    #[test]
    fn parts_have_every_line_once() {
        let long = [&b"x".repeat(3 * LOOK)[..], b"\nshort\n"].concat();
        for text in [
            &b""[..],
            b"\n",
            b"no newline",
            b"a\nbc\n\ndef\ng",
            b"a\nb\n",
            &long,
        ] {
            let (file, size) = (file(text), text.len() as u64);
            for parts in 1..12 {
                let mut all = Vec::new();
                for part in 0..parts {
                    let bytes = size * part / parts..size * (part + 1) / parts;
                    let lines = whole_lines(&file, bytes, size).unwrap();
                    let lines = read(&file, lines).unwrap();
                    let begins_a_line = all.last().is_none_or(|last| *last == b'\n');
                    assert!(lines.is_empty() || begins_a_line);
                    all.extend(lines);
                }
                assert_eq!(all, text, "{parts} parts");
            }
        }
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let error = read(&file(b"abc"), 1..9).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
