//! The program `nas-is`: ranks integers.

use std::io::Write;
use std::time::Duration;

use clap::Parser;
use samite::Fabric;
use samite::pgas::Pgas;
use samite::program::{Reporter, Summary};

use super::judge;
use crate::is::verify::CHECKS;
use crate::is::{self, PASSES, Problem};
use crate::{Class, Error};

/// Ranks integers as the NAS benchmark IS does, with its verification.
///
/// All units of the program share the keys. Ten passes are timed, as published; the rate counts one
/// operation per key and pass.
#[derive(Clone, Debug, Parser)]
#[command(name = "nas-is")]
pub struct Args {
    /// Size of the problem
    #[arg(long, value_enum, ignore_case = true, default_value_t = Class::A)]
    pub class: Class,
}

/// Runs one unit. Collective over the program.
///
/// # Errors
///
/// [`Error::Wrong`] if the verification fails; errors of the fabric (lost units, memory).
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let pgas = Pgas::new(fabric)?;
    let speaks = pgas.me().0 == 0;
    let problem = Problem::new(args.class);
    let mut reporter = speaks.then(|| Reporter::new(out, PASSES));
    let outcome = is::run(&pgas, problem, |pass, elapsed| {
        let Some(reporter) = &mut reporter else {
            return Ok(());
        };
        Ok(reporter.report(pass, || {
            format!("{:.0} Mop/s", rate(&problem, pass, elapsed))
        })?)
    })?;
    let detail = format!("{} of {CHECKS} checks", outcome.right);
    if speaks {
        let summary = Summary::new(format_args!("NAS IS, class {}", args.class))
            .row(
                "keys",
                format_args!("{} of {} bits", problem.keys(), problem.values_log2()),
            )
            .row("units", pgas.units())
            .row("passes", PASSES)
            .row("time", format_args!("{:.3} s", outcome.time.as_secs_f64()))
            .row(
                "rate",
                format_args!("{:.2} Mop/s", rate(&problem, PASSES, outcome.time)),
            )
            .verification(outcome.is_verified(), &detail);
        write!(out, "{summary}")?;
    }
    judge(outcome.is_verified(), &detail)
}

/// Millions of keys per second.
fn rate(problem: &Problem, passes: u64, time: Duration) -> f64 {
    (passes * problem.keys()) as f64 / time.as_secs_f64() / 1e6
}
