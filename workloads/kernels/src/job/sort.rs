//! The program `file-sort`: puts the records of a file in order.

use std::io::Write;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use samite::Fabric;
use samite::pgas::Pgas;
use samite::program::Summary;

use super::timed;
use crate::Error;
use crate::sort::{Checksum, Lines, Part, Records, Words};

/// Sorts a file over all units.
///
/// Every unit reads a part of the file; the records travel once, to the unit that writes them. The
/// result is read again and checked: it is in order, and it has the records of the input.
#[derive(Clone, Debug, Parser)]
#[command(name = "file-sort")]
pub struct Args {
    /// What is sorted
    pub input: PathBuf,
    /// Where the result goes
    #[arg(long, short)]
    pub output: PathBuf,
    /// What the records are
    #[arg(long, value_enum, default_value_t = Kind::Lines)]
    pub records: Kind,
}

/// What the records of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Lines of a text, compared byte by byte
    Lines,
    /// Numbers of 64 bits, little endian, without sign
    U64,
}

/// Runs one unit. Collective over the program.
///
/// # Errors
///
/// [`Error::File`]; [`Error::Wrong`] when the result is not what it should be; what the fabric says of
/// lost units and of memory.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    match args.records {
        Kind::Lines => sort::<Lines>(fabric, args, out),
        Kind::U64 => sort::<Words>(fabric, args, out),
    }
}

fn sort<R: Records>(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let pgas = Pgas::new(fabric)?;
    let mut part = Part::<R>::default();
    let reading = timed(&pgas, || {
        part = Part::read(&pgas, &args.input)?;
        Ok(())
    })?;
    let before = part.checksum(&pgas)?;
    let sorting = timed(&pgas, || part.sort(&pgas))?;
    let writing = timed(&pgas, || part.write(&pgas, &args.output))?;
    drop(part);

    let result = Part::<R>::read(&pgas, &args.output)?;
    let (after, in_order) = (result.checksum(&pgas)?, result.is_sorted(&pgas)?);
    let right = in_order && before == after;
    let detail = detail(before, after, in_order);
    if pgas.me().0 == 0 {
        let all = reading + sorting + writing;
        let speed = result.file_bytes() as f64 / all.as_secs_f64() / 1e6;
        let seconds = |time: std::time::Duration| format!("{:.3} s", time.as_secs_f64());
        let summary = Summary::new(format_args!("Sort of {}", args.input.display()))
            .row("records", before.records)
            .row("units", pgas.units())
            .row("reading", seconds(reading))
            .row("sorting", seconds(sorting))
            .row("writing", seconds(writing))
            .row("all", format_args!("{}, {speed:.1} MB/s", seconds(all)))
            .row("result", args.output.display())
            .verification(right, &detail);
        write!(out, "{summary}")?;
    }
    right.then_some(()).ok_or(Error::Wrong(detail))
}

fn detail(before: Checksum, after: Checksum, in_order: bool) -> String {
    let order = if in_order { "in order" } else { "not in order" };
    let same = if before == after {
        "those"
    } else {
        "not those"
    };
    format!("{} records, {order}, {same} of the input", after.records)
}
