//! Units that exchange their borders compute the bits of the sequential solver.

use std::sync::mpsc::{Receiver, RecvError, Sender, channel};

use proptest::prelude::*;

use samite_relaxation::{
    Change, Halo, NoNeighbours, Part, Problem, RowsMut, Sequential, Solver, VecRows,
};

/// A halo over channels, for units that are threads.
struct ChannelHalo {
    above: Option<Link>,
    below: Option<Link>,
}

/// To and from one neighbour.
type Link = (Sender<Vec<f64>>, Receiver<Vec<f64>>);

impl Halo for ChannelHalo {
    type Error = RecvError;

    fn exchange(
        &mut self,
        top_row: &[f64],
        bottom_row: &[f64],
        halo_top: &mut [f64],
        halo_bottom: &mut [f64],
    ) -> Result<(), RecvError> {
        for (side, row) in [(&self.above, top_row), (&self.below, bottom_row)] {
            if let Some((to, _)) = side {
                to.send(row.to_vec()).map_err(|_| RecvError)?;
            }
        }
        for (side, halo) in [(&self.above, halo_top), (&self.below, halo_bottom)] {
            if let Some((_, from)) = side {
                halo.copy_from_slice(&from.recv()?);
            }
        }
        Ok(())
    }
}

fn halos(units: usize) -> Vec<ChannelHalo> {
    let mut halos: Vec<_> = (0..units)
        .map(|_| ChannelHalo {
            above: None,
            below: None,
        })
        .collect();
    for lower in 1..units {
        let ((down, from_above), (up, from_below)) = (channel(), channel());
        halos[lower - 1].below = Some((down, from_below));
        halos[lower].above = Some((up, from_above));
    }
    halos
}

/// Runs `steps` on `units` threads; gives the whole field and the change of the last step.
fn run(problem: Problem, units: usize, steps: usize) -> (Vec<f64>, Change) {
    let unit = |part: Part, mut halo: ChannelHalo| {
        let mut solver = Solver::new(problem, part);
        let field = || VecRows::new(part.rows, problem.cols());
        let (mut old, mut new) = (field(), field());
        solver.fill_initial(&old);
        let mut change = Change::default();
        for _ in 0..steps {
            change = solver.step(&old, &new, &mut halo).unwrap();
            std::mem::swap(&mut old, &mut new);
        }
        (old.to_vec(), change)
    };
    std::thread::scope(|scope| {
        let parts = problem.parts(units).unwrap();
        let threads: Vec<_> = (parts.into_iter().zip(halos(units)))
            .map(|(part, halo)| scope.spawn(move || unit(part, halo)))
            .collect();
        let mut whole = (Vec::new(), Change::default());
        for thread in threads {
            let (field, change) = thread.join().unwrap();
            whole.0.extend(field);
            whole.1 = whole.1.merge(change);
        }
        whole
    })
}

fn assert_exact(problem: Problem, units: usize, steps: usize) {
    let mut sequential = Sequential::new(problem);
    let max_change = (0..steps).map(|_| sequential.step()).last().unwrap_or(0.0);
    let (field, change) = run(problem, units, steps);
    let whole = VecRows::new(problem.rows(), problem.cols());
    for (row, cells) in field.chunks(problem.cols()).enumerate() {
        whole.store(row, cells);
    }
    let comparison = sequential.compare(0, &whole);
    assert_eq!(comparison.first, None, "{units} units, {steps} steps");
    assert_eq!(comparison.cells, problem.cells());
    assert_eq!(change.max, max_change);
}

#[test]
fn units_compute_the_bits_of_the_sequential_solver() {
    for (size, units, steps) in [(48, 2, 100), (33, 5, 60), (17, 17, 40), (64, 1, 50)] {
        assert_exact(Problem::new(size, size).unwrap(), units, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_shape_and_any_units_are_exact(
        rows in 1usize..24, cols in 1usize..40, units in 1usize..8, steps in 0usize..12,
        omega in 0.1f64..1.9,
    ) {
        let problem = Problem::new(rows, cols).unwrap().with_omega(omega).unwrap();
        assert_exact(problem, units.min(rows), steps);
    }
}

#[test]
fn the_old_step_stays_as_it_was() {
    let problem = Problem::new(12, 12).unwrap();
    let mut solver = Solver::new(problem, problem.part(0, 1).unwrap());
    let (old, new) = (VecRows::new(12, 12), VecRows::new(12, 12));
    solver.fill_initial(&old);
    let before = old.to_vec();
    let Ok(change) = solver.step(&old, &new, &mut NoNeighbours);
    assert_eq!(old.to_vec(), before);
    assert!(change.max > 0.0 && change.sum >= change.max);
}

#[test]
fn a_step_in_place_has_the_same_bits() {
    for rows in [1, 2, 3, 12] {
        let problem = Problem::new(rows, 9).unwrap();
        let mut solver = Solver::new(problem, problem.part(0, 1).unwrap());
        let field = VecRows::new(rows, 9);
        solver.fill_initial(&field);
        let mut sequential = Sequential::new(problem);
        for _ in 0..20 {
            let Ok(_) = solver.step(&field, &field, &mut NoNeighbours);
            sequential.step();
        }
        assert!(sequential.compare(0, &field).is_exact(), "{rows} rows");
    }
}

#[test]
fn a_lost_neighbour_ends_the_step() {
    let problem = Problem::new(8, 8).unwrap();
    let part = problem.part(0, 2).unwrap();
    let (old, new) = (VecRows::new(4, 8), VecRows::new(4, 8));
    let mut pair = halos(2);
    pair.pop();
    let step = Solver::new(problem, part).step(&old, &new, &mut pair[0]);
    assert_eq!(step, Err(RecvError));
}
