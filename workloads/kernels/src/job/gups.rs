//! The program `gups`: random updates of a table that is distributed over the units.

use std::io::Write;
use std::time::Duration;

use clap::Parser;
use samite::Fabric;
use samite::pgas::{Location, Pgas, Segment, Sum, Update};
use samite::program::{Reporter, Summary};

use super::{Access, judge, timed, total};
use crate::Error;
use crate::sequence::Sequence;
use crate::spread::Blocks;

/// Updates random words of a table over all units, as RandomAccess of the HPC Challenge does.
///
/// Each word of a published sequence is combined by exclusive-or with the word at the index given
/// by its low bits. The updates are atomic, so none may be lost; HPC Challenge would accept one in
/// a hundred.
///
/// HPC Challenge allows a process to have 1024 updates in flight. On memory that is mapped here,
/// the aggregated variant has fewer; by messages, it collects more.
#[derive(Clone, Debug, Parser)]
#[command(name = "gups")]
pub struct Args {
    /// Words of the whole table, as a power of two
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=40))]
    pub words_log2: u32,
    /// Updates of the whole run [default: four per word]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub updates: Option<u64>,
    /// How updates travel [default: one run of each]
    #[arg(long = "way", value_enum)]
    pub ways: Vec<Access>,
}

/// Runs one unit. Collective over the program.
///
/// # Errors
///
/// [`Error::Wrong`] if an update was lost; errors of the fabric (lost units, memory).
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let pgas = Pgas::new(fabric)?;
    let words = 1 << args.words_log2;
    let table = Table::new(&pgas, words)?;
    let updates = args.updates.unwrap_or(4 * words);
    let mut summary = Summary::new("GUPS")
        .row("table", format_args!("{words} words of 8 bytes"))
        .row("updates", updates)
        .row("units", pgas.units());
    let mut wrong = 0;
    for way in Access::chosen(&args.ways) {
        table.reset()?;
        let time = timed(&pgas, || table.update(*way, updates, out))?;
        wrong += total(&pgas, table.wrong(updates)?)?;
        summary = summary.row(way, gups(updates, time));
    }
    if pgas.me().0 == 0 {
        let detail = format_args!("{wrong} words differ from those of a sequential run");
        write!(out, "{}", summary.verification(wrong == 0, detail))?;
    }
    judge(wrong, "words of the table")
}

fn gups(updates: u64, time: Duration) -> String {
    let seconds = time.as_secs_f64();
    format!(
        "{:.6} GUPS ({seconds:.3} s)",
        updates as f64 / seconds / 1e9
    )
}

/// The table, one block of it per unit.
struct Table<'p> {
    pgas: &'p Pgas,
    words: u64,
    blocks: Blocks,
    segment: Segment<u64>,
}

/// Updates between two readings of the clock.
const BURST: u64 = 1 << 16;

impl<'p> Table<'p> {
    fn new(pgas: &'p Pgas, words: u64) -> Result<Self, Error> {
        let blocks = Blocks::new(words, pgas.units());
        Ok(Table {
            pgas,
            words,
            blocks,
            segment: pgas.world().allocate(blocks.longest())?,
        })
    }

    /// Sets every word to its index.
    fn reset(&self) -> Result<(), Error> {
        let own: Vec<u64> = self.blocks.part(self.pgas.me().0).collect();
        self.segment.write_local(0, &own)?;
        Ok(self.pgas.world().barrier()?)
    }

    /// Makes the updates of this unit: a contiguous part of the sequence.
    fn update(&self, way: Access, updates: u64, out: &mut dyn Write) -> Result<(), Error> {
        let share = Blocks::new(updates, self.pgas.units()).part(self.pgas.me().0);
        let mut sequence = Sequence::from(share.start);
        let count = share.end - share.start;
        let mut reporter = (self.pgas.me().0 == 0).then(|| Reporter::new(out, count));
        let mut done = 0;
        while done < count {
            let burst = BURST.min(count - done);
            let numbers = sequence.by_ref().take(burst as usize);
            match way {
                Access::Plain => self.plain(numbers)?,
                Access::Aggregated => self.aggregated(numbers)?,
            }
            done += burst;
            if let Some(reporter) = &mut reporter {
                reporter.report(done, || way.to_string())?;
            }
        }
        Ok(())
    }

    fn plain(&self, numbers: impl Iterator<Item = u64>) -> Result<(), Error> {
        for number in numbers {
            let at = self.place(number);
            self.segment
                .fetch_op(at.rank, at.index, Update::BitXor, number)?;
        }
        Ok(())
    }

    fn aggregated(&self, numbers: impl Iterator<Item = u64>) -> Result<(), Error> {
        let mut updates = self.segment.updates(Update::BitXor);
        for number in numbers {
            let at = self.place(number);
            updates.push(at.rank, at.index, number)?;
        }
        Ok(updates.finish()?)
    }

    #[inline]
    fn place(&self, number: u64) -> Location {
        self.blocks.locate(number & (self.words - 1))
    }

    /// Returns the number of words of this unit's block that are wrong.
    fn wrong(&self, updates: u64) -> Result<u64, Error> {
        let part = self.blocks.part(self.pgas.me().0);
        let mut own = vec![0; (part.end - part.start) as usize];
        self.segment.read_local(0, &mut own)?;
        let (mut first, mut all) = ([0], [0]);
        let team = self.pgas.world();
        team.exscan(&[own.len() as u64], &mut first, Sum)?;
        team.all_reduce(&[own.len() as u64], &mut all, Sum)?;
        if all != [self.words] {
            return Ok(self.words);
        }
        Ok(differing(own, first[0], self.words, updates))
    }
}

/// Repeats all updates sequentially, and applies those of a block to its words: each of them must
/// then equal its index again. Returns how many do not. The block begins at index `first` of the
/// table; the assignment of indices to units is not taken from the code that made the updates.
fn differing(mut block: Vec<u64>, first: u64, words: u64, updates: u64) -> u64 {
    for number in Sequence::from(0).take(updates as usize) {
        let place = (number % words).checked_sub(first);
        if let Some(word) = place.and_then(|at| block.get_mut(at as usize)) {
            *word ^= number;
        }
    }
    let places = block.iter().zip(first..);
    places.filter(|(word, place)| **word != *place).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a table of 64 words after its updates, by the definition.
    fn table(updates: u64) -> Vec<u64> {
        let mut table: Vec<u64> = (0..64).collect();
        let numbers = Sequence::from(0).take(updates as usize);
        numbers.for_each(|number| table[(number % 64) as usize] ^= number);
        table
    }

    #[test]
    fn a_lost_or_a_stray_update_is_found() {
        let whole = table(500);
        assert_eq!(differing(whole.clone(), 0, 64, 500), 0);
        let parts = [(0, 20), (20, 20), (40, 24)];
        let of = |table: &[u64], (first, length): (u64, u64)| {
            let block = &table[first as usize..(first + length) as usize];
            differing(block.to_vec(), first, 64, 500)
        };
        assert!(parts.iter().all(|part| of(&whole, *part) == 0));
        assert_eq!(
            of(&table(499), parts[0]) + of(&table(499), parts[1]) + of(&table(499), parts[2]),
            1
        );
        // Two words at each other's index: as if each update had been made at the other one, too.
        let mut swapped = whole.clone();
        swapped.swap(3, 45);
        assert_eq!((of(&swapped, parts[0]), of(&swapped, parts[2])), (1, 1));
        assert!(super::super::judge(1, "words").is_err());
    }
}
