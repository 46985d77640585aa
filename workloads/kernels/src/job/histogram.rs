//! The program `histogram`: counts in a table that is distributed over the units.

use std::io::Write;

use clap::Parser;
use samite::Fabric;
use samite::pgas::{Pgas, Segment, Update};
use samite::program::Summary;

use super::{Access, judge, rate, timed, total};
use crate::spread::Blocks;
use crate::{Error, random_places};

/// Counts random indices in a table over all units: one atomic addition each, like the histogram of
/// the bale kernels.
#[derive(Clone, Debug, Parser)]
#[command(name = "histogram")]
pub struct Args {
    /// Counters per unit
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub counters: u64,
    /// Additions per unit
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub updates: u64,
    /// How additions travel [default: one run of each]
    #[arg(long = "way", value_enum)]
    pub ways: Vec<Access>,
}

/// Runs one unit. Collective over the program.
///
/// # Errors
///
/// [`Error::Wrong`] if a counter is wrong; errors of the fabric (lost units, memory).
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let pgas = Pgas::new(fabric)?;
    let (me, units) = (pgas.me().0, pgas.units());
    let counters = args.counters * u64::from(units);
    let blocks = Blocks::new(counters, units);
    let segment: Segment<u64> = pgas.world().allocate(blocks.longest())?;
    let places: Vec<u64> = random_places(me, counters)
        .take(args.updates as usize)
        .collect();
    let updates = args.updates * u64::from(units);
    let mut summary = Summary::new("Histogram")
        .row("counters", counters)
        .row("additions", updates)
        .row("units", units);
    let mut wrong = 0;
    for way in Access::chosen(&args.ways) {
        // Each variant starts from zeroed counters.
        segment.write_local(0, &vec![0; args.counters as usize])?;
        let time = timed(&pgas, || match way {
            Access::Plain => plain(&segment, &blocks, &places),
            Access::Aggregated => aggregated(&segment, &blocks, &places),
        })?;
        wrong += total(&pgas, wrong_counters(&segment, args)?)?;
        summary = summary.row(way, rate(updates, time));
    }
    if me == 0 {
        let detail = format_args!("{wrong} counters differ from those of a sequential run");
        write!(out, "{}", summary.verification(wrong == 0, detail))?;
    }
    judge(wrong, "counters")
}

fn plain(segment: &Segment<u64>, blocks: &Blocks, places: &[u64]) -> Result<(), Error> {
    for place in places {
        let at = blocks.locate(*place);
        segment.fetch_add(at.rank, at.index, 1)?;
    }
    Ok(())
}

fn aggregated(segment: &Segment<u64>, blocks: &Blocks, places: &[u64]) -> Result<(), Error> {
    let mut updates = segment.updates(Update::Sum);
    for place in places {
        let at = blocks.locate(*place);
        updates.push(at.rank, at.index, 1)?;
    }
    Ok(updates.finish()?)
}

/// Returns how many counters of this unit are wrong.
fn wrong_counters(segment: &Segment<u64>, args: &Args) -> Result<u64, Error> {
    let team = segment.team();
    let mut found = vec![0; args.counters as usize];
    segment.read_local(0, &mut found)?;
    Ok(differing(&found, team.rank(), team.size(), args.updates))
}

/// Repeats the additions of all units sequentially; returns how many of this unit's counters
/// differ. Every unit has the same number of counters, in the order of ranks: computed here, not by
/// the code that made the additions.
fn differing(found: &[u64], rank: u32, units: u32, updates: u64) -> u64 {
    let counters = found.len() as u64;
    let (first, mut expected) = (u64::from(rank) * counters, vec![0; found.len()]);
    for unit in 0..units {
        let places = random_places(unit, counters * u64::from(units));
        for place in places.take(updates as usize) {
            let own = place.checked_sub(first);
            if let Some(counter) = own.and_then(|at| expected.get_mut(at as usize)) {
                *counter += 1;
            }
        }
    }
    let both = found.iter().zip(&expected);
    both.filter(|(found, expected)| found != expected).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_or_a_stray_addition_is_found() {
        let mut all = vec![0; 30];
        for unit in 0..3 {
            random_places(unit, 30)
                .take(500)
                .for_each(|place| all[place as usize] += 1);
        }
        for rank in 0..3 {
            let own = &all[10 * rank..][..10];
            assert_eq!(differing(own, rank as u32, 3, 500), 0);
            let mut lost = own.to_vec();
            lost[4] -= 1;
            assert_eq!(differing(&lost, rank as u32, 3, 500), 1);
            lost[5] += 1;
            assert_eq!(differing(&lost, rank as u32, 3, 500), 2);
            assert!(differing(own, (rank as u32 + 1) % 3, 3, 500) > 0);
        }
        assert!(judge(2, "counters").is_err());
    }
}
