//! The program `file-sort`: sorts the records of a file.

use std::io::Write;
use std::path::PathBuf;

use clap::Parser;
use samite::Fabric;
use samite::pgas::Pgas;
use samite::program::Summary;

use super::timed;
use crate::Error;
use crate::sort::{Contents, Kind, Lines, Part, Records, Words};

/// Sorts a file over all units.
///
/// Every unit reads a part of the file. The records are sent once, to the unit that writes them.
/// For verification, input and result are read again, record by record and without the code that
/// sorts: the result is in order, and has the same records, and as many records and bytes, as the
/// input.
#[derive(Clone, Debug, Parser)]
#[command(name = "file-sort")]
pub struct Args {
    /// The file to sort
    pub input: PathBuf,
    /// The file for the result
    #[arg(long, short)]
    pub output: PathBuf,
    /// The kind of records
    #[arg(long, value_enum, default_value_t = Kind::Lines)]
    pub records: Kind,
}

/// Runs one unit. Collective over the program.
///
/// # Errors
///
/// [`Error::File`]; [`Error::Wrong`] if the result is wrong; errors of the fabric (lost units,
/// memory).
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
    // Verification reads the input now and the output at the end, independently of the sort.
    let before = Contents::of(&pgas, &args.input, args.records)?;
    let sorting = timed(&pgas, || part.sort(&pgas))?;
    let writing = timed(&pgas, || part.write(&pgas, &args.output))?;
    let bytes = part.file_bytes();
    drop(part);

    let after = Contents::of(&pgas, &args.output, args.records)?;
    let decision = after.is_sorted_from(&before);
    let records = after.records.records;
    let detail = match &decision {
        Ok(()) => format!("{records} records, in order, those of the input"),
        Err(error) => error.to_string(),
    };
    if pgas.me().0 == 0 {
        let all = reading + sorting + writing;
        let speed = bytes as f64 / all.as_secs_f64() / 1e6;
        let seconds = |time: std::time::Duration| format!("{:.3} s", time.as_secs_f64());
        let summary = Summary::new(format_args!("Sort of {}", args.input.display()))
            .row("records", before.records.records)
            .row("units", pgas.units())
            .row("reading", seconds(reading))
            .row("sorting", seconds(sorting))
            .row("writing", seconds(writing))
            .row("all", format_args!("{}, {speed:.1} MB/s", seconds(all)))
            .row("result", args.output.display())
            .verification(decision.is_ok(), detail);
        write!(out, "{summary}")?;
    }
    decision
}
