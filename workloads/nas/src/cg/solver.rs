//! The smallest eigenvalue by inverse iteration, each step of which solves a system by conjugate
//! gradients.
//!
//! A unit has some rows of the matrix and the same part of every vector. It communicates in two
//! ways: sums over all rows, and gathering the vector by which the matrix is multiplied.

use std::convert::Infallible;
use std::ops::Range;

use super::matrix::Matrix;
use super::problem::{INNER, Problem};

/// What a unit needs from the others. Every unit makes the same calls in the same order.
pub trait Others {
    /// Why the communication failed.
    type Error;

    /// Returns the sums over all units; the same bits at every one.
    fn sum<const N: usize>(&mut self, values: [f64; N]) -> Result<[f64; N], Self::Error>;

    /// Gathers the parts of a vector: `part` is that of this unit.
    fn whole(&mut self, part: &[f64], whole: &mut [f64]) -> Result<(), Self::Error>;
}

/// No other units: this one has all rows.
#[derive(Clone, Copy, Debug)]
pub struct Alone;

impl Others for Alone {
    type Error = Infallible;

    fn sum<const N: usize>(&mut self, values: [f64; N]) -> Result<[f64; N], Infallible> {
        Ok(values)
    }

    fn whole(&mut self, part: &[f64], whole: &mut [f64]) -> Result<(), Infallible> {
        whole.copy_from_slice(part);
        Ok(())
    }
}

/// The result of an outer iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The eigenvalue.
    pub zeta: f64,
    /// The norm of the residual of the system.
    pub residual: f64,
}

/// A unit's part of the work.
#[derive(Clone, Debug)]
pub struct Solver {
    shift: f64,
    matrix: Matrix,
    /// The approximate eigenvector.
    x: Vec<f64>,
    /// The solution of the system, its residual, the direction and its image.
    z: Vec<f64>,
    r: Vec<f64>,
    p: Vec<f64>,
    q: Vec<f64>,
    whole: Vec<f64>,
}

impl Solver {
    /// Returns a solver for these rows.
    pub fn new(problem: &Problem, rows: Range<usize>) -> Solver {
        let zeros = vec![0.0; rows.len()];
        Solver {
            shift: problem.shift,
            matrix: Matrix::new(problem, rows),
            x: vec![1.0; zeros.len()],
            z: zeros.clone(),
            r: zeros.clone(),
            p: zeros.clone(),
            q: zeros,
            whole: vec![0.0; problem.rows],
        }
    }

    /// Returns the number of stored elements of the matrix.
    pub fn elements(&self) -> usize {
        self.matrix.elements()
    }

    /// Returns to the vector of ones.
    pub fn reset(&mut self) {
        self.x.fill(1.0);
    }

    /// Does one outer iteration. Collective.
    pub fn step<O: Others>(&mut self, others: &mut O) -> Result<Estimate, O::Error> {
        let residual = self.solve(others)?;
        let [xz, zz] = others.sum([dot(&self.x, &self.z), dot(&self.z, &self.z)])?;
        let norm = 1.0 / zz.sqrt();
        for (x, z) in self.x.iter_mut().zip(&self.z) {
            *x = norm * z;
        }
        Ok(Estimate {
            zeta: self.shift + 1.0 / xz,
            residual,
        })
    }

    /// Solves matrix × z = x approximately; returns the norm of the residual.
    fn solve<O: Others>(&mut self, others: &mut O) -> Result<f64, O::Error> {
        self.z.fill(0.0);
        self.r.copy_from_slice(&self.x);
        self.p.copy_from_slice(&self.x);
        let [mut rho] = others.sum([dot(&self.r, &self.r)])?;
        for _ in 0..INNER {
            others.whole(&self.p, &mut self.whole)?;
            self.matrix.multiply(&self.whole, &mut self.q);
            let [pq] = others.sum([dot(&self.p, &self.q)])?;
            let alpha = rho / pq;
            for (z, p) in self.z.iter_mut().zip(&self.p) {
                *z += alpha * p;
            }
            for (r, q) in self.r.iter_mut().zip(&self.q) {
                *r -= alpha * q;
            }
            let [next] = others.sum([dot(&self.r, &self.r)])?;
            let beta = next / std::mem::replace(&mut rho, next);
            for (p, r) in self.p.iter_mut().zip(&self.r) {
                *p = r + beta * *p;
            }
        }
        others.whole(&self.z, &mut self.whole)?;
        self.matrix.multiply(&self.whole, &mut self.q);
        let distances = self.x.iter().zip(&self.q).map(|(x, q)| (x - q).powi(2));
        let [squares] = others.sum([distances.sum()])?;
        Ok(squares.sqrt())
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;

    fn estimate(class: Class) -> Estimate {
        let problem = Problem::new(class);
        let mut solver = Solver::new(&problem, 0..problem.rows);
        let mut step = || {
            let Ok(estimate) = solver.step(&mut Alone);
            estimate
        };
        (0..problem.iterations)
            .map(|_| step())
            .last()
            .unwrap_or_default()
    }

    /// Guards the matrix, the method and the published results together.
    #[test]
    fn the_published_estimates_are_found() {
        for class in [Class::S, Class::W, Class::A] {
            let estimate = estimate(class);
            let distance = Problem::new(class).distance(estimate.zeta);
            assert!(
                Problem::new(class).verify(estimate.zeta),
                "class {class}: {distance:e}"
            );
            assert!(estimate.residual < 1e-9, "class {class}: {estimate:?}");
        }
    }

    #[test]
    fn after_a_reset_everything_is_as_before() {
        let problem = Problem::new(Class::S);
        let mut solver = Solver::new(&problem, 0..problem.rows);
        let Ok(first) = solver.step(&mut Alone);
        let Ok(second) = solver.step(&mut Alone);
        solver.reset();
        assert_eq!(solver.step(&mut Alone), Ok(first));
        assert_ne!(first, second);
    }
}
