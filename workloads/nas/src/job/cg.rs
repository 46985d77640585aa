//! The program `nas-cg`: the smallest eigenvalue of a sparse matrix.

use std::io::Write;
use std::time::{Duration, Instant};

use clap::Parser;
use samite::Fabric;
use samite::pgas::{Max, Pgas, Sum};
use samite::program::{Reporter, Summary};

use super::judge;
use crate::cg::{EPSILON, Estimate, Members, Problem, Solver};
use crate::{Class, Error};

/// Estimates an eigenvalue by conjugate gradients as the NAS benchmark CG does, with its
/// verification.
///
/// The units of the program share the rows of the matrix. All outer iterations are timed, as
/// published; the rate refers to the published number of operations.
#[derive(Clone, Debug, Parser)]
#[command(name = "nas-cg")]
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
    let team = pgas.world();
    let speaks = pgas.me().0 == 0;
    let problem = Problem::new(args.class);
    let mut others = Members::new(team, &problem);
    let mut solver = Solver::new(&problem, problem.part(team.rank(), team.size()));
    let mut elements = [0];
    team.all_reduce(&[solver.elements() as u64], &mut elements, Sum)?;

    // One iteration touches all memory; then everything starts again.
    solver.step(&mut others)?;
    solver.reset();
    let mut reporter = speaks.then(|| Reporter::new(out, problem.iterations));
    let mut estimate = Estimate::default();
    team.barrier()?;
    let begin = Instant::now();
    for iteration in 1..=problem.iterations {
        estimate = solver.step(&mut others)?;
        if let Some(reporter) = &mut reporter {
            reporter.report(iteration, || format!("zeta {:.13}", estimate.zeta))?;
        }
    }
    let own = begin.elapsed().as_nanos() as u64;
    let mut slowest = [0];
    team.all_reduce(&[own], &mut slowest, Max)?;
    let elapsed = Duration::from_nanos(slowest[0]);

    let (zeta, distance) = (estimate.zeta, problem.distance(estimate.zeta));
    let right = problem.verify(zeta);
    let detail = format!(
        "zeta is {zeta:.13}, {distance:.1e} of it from {:.13} (at most {EPSILON:e})",
        problem.expected
    );
    if speaks {
        let seconds = elapsed.as_secs_f64();
        let summary = Summary::new(format_args!("NAS CG, class {}", args.class))
            .row(
                "matrix",
                format_args!("{} rows, {} elements", problem.rows, elements[0]),
            )
            .row("units", pgas.units())
            .row("iterations", problem.iterations)
            .row("time", format_args!("{seconds:.3} s"))
            .row(
                "rate",
                format_args!("{:.2} Mop/s", problem.operations() / seconds / 1e6),
            )
            .row("residual", format_args!("{:.3e}", estimate.residual))
            .verification(right, &detail);
        write!(out, "{summary}")?;
    }
    judge(right, &detail)
}
