//! The lines of a text, and their order.
//!
//! Lines are byte strings, compared byte by byte as `LC_ALL=C sort` does. The first eight bytes of
//! a line are kept beside its position as a number, so that most comparisons access no text.

use std::cmp::Ordering;
use std::fs::File;
use std::io;
use std::ops::Range;

use samite::pgas::{self, Pgas};

use super::file;
use super::part::Records;

/// How many bytes of a line a [`Cut`] keeps. Longer lines that are equal up to there are cut at one
/// position, which costs balance, not order.
const CUT_BYTES: usize = 64;

/// Lines of a text at this unit.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    text: Vec<u8>,
    lines: Vec<Line>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    /// The first eight bytes as a number with the same order.
    first: u64,
    begin: usize,
    /// After the last byte; the newline is not part of a line.
    end: usize,
}

impl Lines {
    /// Returns the lines of a text, in its order. Every line ends with a newline; the last one may
    /// be missing.
    pub fn of(mut text: Vec<u8>) -> Lines {
        if text.last().is_some_and(|last| *last != b'\n') {
            text.push(b'\n');
        }
        let mut begin = 0;
        let mut line = |line: &[u8]| {
            let end = begin + line.len() - 1;
            let at = Line {
                first: first_bytes(&text[begin..end]),
                begin,
                end,
            };
            begin = end + 1;
            at
        };
        let lines = text
            .split_inclusive(|byte| *byte == b'\n')
            .map(&mut line)
            .collect();
        Lines { text, lines }
    }

    /// Sorts the lines. Runs that are already sorted are found and merged.
    pub fn sort(&mut self) {
        let text = &self.text;
        self.lines.sort_by(|a, b| {
            a.first
                .cmp(&b.first)
                .then_with(|| text[a.begin..a.end].cmp(&text[b.begin..b.end]))
        });
    }

    /// Returns the number of lines.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns true if there is no line.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns a line, without its newline.
    pub fn line(&self, at: usize) -> &[u8] {
        let line = self.lines[at];
        &self.text[line.begin..line.end]
    }

    /// Returns the lines, without their newlines.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + DoubleEndedIterator {
        self.lines
            .iter()
            .map(|line| &self.text[line.begin..line.end])
    }

    /// Returns the text of the lines in their order.
    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.text.len());
        for line in &self.lines {
            text.extend_from_slice(&self.text[line.begin..=line.end]);
        }
        text
    }

    /// Returns `count` positions at equal distances, as cuts of all lines, of which unit `rank` has
    /// these; all positions if there are fewer lines. The lines are sorted.
    pub fn sample(&self, rank: u32, count: usize) -> Vec<Cut> {
        let count = count.min(self.len());
        let place = |nth: usize| (2 * nth + 1) * self.len() / (2 * count);
        let cut = |place: usize| Cut {
            text: self.line(place).iter().take(CUT_BYTES).copied().collect(),
            rank,
            place: place as u64,
        };
        (0..count).map(|nth| cut(place(nth))).collect()
    }

    /// Returns how many of these sorted lines of unit `rank` are before a cut.
    pub fn before(&self, cut: &Cut, rank: u32) -> usize {
        let lower = self.partition(|line| line < &cut.text[..]);
        let upper = self.partition(|line| line <= &cut.text[..]);
        match rank.cmp(&cut.rank) {
            Ordering::Less => upper,
            Ordering::Equal => (cut.place as usize).clamp(lower, upper),
            Ordering::Greater => lower,
        }
    }

    fn partition(&self, below: impl Fn(&[u8]) -> bool) -> usize {
        self.lines
            .partition_point(|line| below(&self.text[line.begin..line.end]))
    }
}

/// Samples of each unit from which cuts are chosen: enough for parts that differ by a few percent.
const SAMPLES: usize = 256;

impl Records for Lines {
    fn borders(file: &File, bytes: Range<u64>, size: u64) -> io::Result<Range<u64>> {
        file::whole_lines(file, bytes, size)
    }

    fn parse(bytes: Vec<u8>) -> Lines {
        Lines::of(bytes)
    }

    fn bytes(&self) -> Vec<u8> {
        self.text()
    }

    /// Sample sort: every unit sorts its lines and sends some of them as samples. Cuts between
    /// these are the borders between the units. Then all lines are sent once, in sorted runs that
    /// are merged.
    fn sort(&mut self, pgas: &Pgas) -> pgas::Result<()> {
        self.sort();
        let (team, me) = (pgas.world(), pgas.me().0);
        let mut sample = Vec::new();
        for cut in self.sample(me, SAMPLES) {
            cut.write(&mut sample);
        }
        let mut sizes = vec![0; team.size() as usize];
        team.all_gather(&[sample.len() as u64], &mut sizes)?;
        let mut samples = vec![0; sizes.iter().sum::<u64>() as usize];
        team.all_gather_v(&sample, &mut samples, &sizes)?;
        let cuts = Cut::between(Cut::read_all(&samples), pgas.units());
        let ends = cuts
            .iter()
            .map(|cut| self.before(cut, me))
            .chain([self.len()]);
        let mut begin = 0;
        let mut lengths: Vec<u64> = ends
            .map(|end| {
                let lines = &self.lines[std::mem::replace(&mut begin, end)..end];
                lines
                    .iter()
                    .map(|line| (line.end + 1 - line.begin) as u64)
                    .sum()
            })
            .collect();
        // Fewer cuts than units if there are fewer lines.
        lengths.resize(pgas.units() as usize, 0);
        let mut incoming = vec![0; lengths.len()];
        team.all_to_all(&lengths, &mut incoming)?;
        let mut text = vec![0; incoming.iter().sum::<u64>() as usize];
        team.all_to_all_v(&self.text(), &lengths, &mut text, &incoming)?;
        *self = Lines::of(text);
        self.sort();
        Ok(())
    }
}

/// Returns the beginning of a line as a number with the same order.
fn first_bytes(line: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = line.len().min(8);
    bytes[..length].copy_from_slice(&line[..length]);
    u64::from_be_bytes(bytes)
}

/// A position among the lines of all units. Equal lines are distinguished by their unit and their
/// position there, so that a text with one line a million times is divided evenly, too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cut {
    text: Vec<u8>,
    rank: u32,
    place: u64,
}

impl Cut {
    /// Encodes it: length of the text, rank, position, text.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.text.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.rank.to_le_bytes());
        out.extend_from_slice(&self.place.to_le_bytes());
        out.extend_from_slice(&self.text);
    }

    /// Decodes all cuts of a message.
    pub fn read_all(mut from: &[u8]) -> Vec<Cut> {
        let mut cuts = Vec::new();
        while let Some((cut, rest)) = Cut::read(from) {
            cuts.push(cut);
            from = rest;
        }
        cuts
    }

    fn read(from: &[u8]) -> Option<(Cut, &[u8])> {
        let (length, rest) = from.split_first_chunk()?;
        let (rank, rest) = rest.split_first_chunk()?;
        let (place, rest) = rest.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let cut = Cut {
            text: text.to_vec(),
            rank: u32::from_le_bytes(*rank),
            place: u64::from_le_bytes(*place),
        };
        Some((cut, rest))
    }

    /// Returns the cuts between the parts of `units` units, from the samples of all.
    pub fn between(mut samples: Vec<Cut>, units: u32) -> Vec<Cut> {
        samples.sort_unstable();
        let nth = |unit: u32| unit as usize * samples.len() / units as usize;
        let cut = |unit| samples.get(nth(unit)).cloned();
        (1..units).filter_map(cut).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sorted(text: &[u8]) -> Lines {
        let mut lines = Lines::of(text.to_vec());
        lines.sort();
        lines
    }

    #[test]
    fn lines_are_what_newlines_end() {
        for (text, expected) in [
            ("", vec![]),
            ("\n", vec![""]),
            ("a", vec!["a"]),
            ("a\n", vec!["a"]),
            ("a\n\nb\r\n", vec!["a", "", "b\r"]),
        ] {
            let lines = Lines::of(text.into());
            assert!(
                lines.iter().eq(expected.iter().map(|line| line.as_bytes())),
                "{text:?}"
            );
        }
        assert_eq!(sorted(b"b\na").text(), b"a\nb\n");
    }

    #[test]
    fn a_short_line_and_one_with_zeros_are_ordered() {
        let lines = sorted(b"a\0\0b\na\na\0\n");
        assert!(lines.iter().eq([&b"a"[..], b"a\0", b"a\0\0b"]));
    }

    #[test]
    fn all_of_a_few_lines_are_samples() {
        let samples = sorted(b"b\na\nc\n").sample(0, 16);
        assert!(samples.iter().map(|cut| cut.place).eq(0..3));
    }

    #[test]
    fn equal_lines_are_divided() {
        let units: Vec<_> = (0..2).map(|_| sorted(&b"same\n".repeat(1000))).collect();
        let samples = (0..2)
            .flat_map(|rank| units[rank as usize].sample(rank, 16))
            .collect();
        let cuts = Cut::between(samples, 2);
        let before: usize = (0..2)
            .map(|rank| units[rank as usize].before(&cuts[0], rank))
            .sum();
        assert!((900..1100).contains(&before), "{before}");
    }

    proptest! {
        #[test]
        fn lines_are_sorted_as_strings(
            text in prop::collection::vec(prop::sample::select(&b"\nab\0\xff"[..]), 0..600),
        ) {
            let unsorted = Lines::of(text.clone());
            let mut expected: Vec<_> = unsorted.iter().map(<[u8]>::to_vec).collect();
            expected.sort();
            prop_assert!(sorted(&text).iter().eq(expected.iter().map(|line| &line[..])));
        }

        #[test]
        fn what_lies_before_a_cut_on_one_unit_is_not_above_what_lies_behind_it_on_another(
            texts in prop::collection::vec(prop::collection::vec(
                prop::sample::select(&b"\na\nbc"[..]), 0..200), 1..5),
            long in 0usize..100,
        ) {
            let prefix = b"x".repeat(long);
            let units: Vec<_> = texts.iter().map(|text| {
                let lines = Lines::of(text.clone());
                let long: Vec<_> = lines.iter().flat_map(|line| [&prefix, line, b"\n"].concat()).collect();
                sorted(&long)
            }).collect();
            let ranks = || units.iter().zip(0..);
            let samples: Vec<_> = ranks().flat_map(|(unit, rank)| unit.sample(rank, 5)).collect();
            let mut sent = Vec::new();
            samples.iter().for_each(|cut| cut.write(&mut sent));
            prop_assert_eq!(&Cut::read_all(&sent), &samples);
            let cuts = Cut::between(samples, units.len() as u32);
            let mut highest: Option<Vec<u8>> = None;
            let mut begins = vec![0; units.len()];
            for nth in 0..=cuts.len() {
                let mut part = Vec::new();
                for (unit, rank) in ranks() {
                    let end = cuts.get(nth).map_or(unit.len(), |cut| unit.before(cut, rank));
                    let begin = std::mem::replace(&mut begins[rank as usize], end);
                    prop_assert!(begin <= end);
                    part.extend((begin..end).map(|at| unit.line(at).to_vec()));
                }
                part.sort();
                if let (Some(highest), Some(lowest)) = (&highest, part.first()) {
                    prop_assert!(highest <= lowest);
                }
                highest = part.pop().or(highest);
            }
        }
    }
}
