//! The sparse matrix of the benchmark: random, symmetric, with known condition.
//!
//! It is a sum of outer products of sparse random vectors, with weights that fall from 1 to 0.1,
//! shifted on its diagonal (NPB 3: `makea`, `sprnvc`, `vecset`, `sparse`). Every unit generates all
//! vectors, which are few, and only its rows of the sum.

use std::ops::Range;

use super::problem::Problem;
use crate::random::Random;

/// The smallest weight; also added to the diagonal before the shift.
const CONDITION: f64 = 0.1;

/// The diagonal element of each vector.
const DIAGONAL: f64 = 0.5;

/// Some rows of the matrix, in compressed row format.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Where each row begins in the two below; one more for the end.
    begins: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

/// The vectors from which the matrix is built.
struct Vectors {
    begins: Vec<usize>,
    /// Index and value; the indices of one vector are distinct.
    elements: Vec<(u32, f64)>,
}

impl Vectors {
    fn new(problem: &Problem) -> Vectors {
        let mut random = Random::new();
        // The benchmark takes the first number of the sequence before it builds the matrix.
        random.real();
        let mut vectors = Vectors {
            begins: vec![0],
            elements: Vec::with_capacity(problem.rows * (problem.nonzeros + 1)),
        };
        let places = problem.rows.next_power_of_two() as f64;
        for diagonal in 0..problem.rows {
            let begin = vectors.elements.len();
            while vectors.elements.len() < begin + problem.nonzeros {
                let value = random.real();
                let place = (places * random.real()) as usize;
                let known = &vectors.elements[begin..];
                if place < problem.rows && !known.iter().any(|known| known.0 as usize == place) {
                    vectors.elements.push((place as u32, value));
                }
            }
            let mut known = vectors.elements[begin..].iter_mut();
            match known.find(|known| known.0 as usize == diagonal) {
                Some(known) => known.1 = DIAGONAL,
                None => vectors.elements.push((diagonal as u32, DIAGONAL)),
            }
            vectors.begins.push(vectors.elements.len());
        }
        vectors
    }

    fn elements(&self, vector: usize) -> &[(u32, f64)] {
        &self.elements[self.begins[vector]..self.begins[vector + 1]]
    }

    /// Returns, for each index of a range, the vectors that are not zero there, in order, with
    /// their value.
    fn by_place(&self, places: &Range<usize>) -> Vec<Vec<(usize, f64)>> {
        let mut by_place = vec![Vec::new(); places.len()];
        for vector in 0..self.begins.len() - 1 {
            for &(place, value) in self.elements(vector) {
                if places.contains(&(place as usize)) {
                    by_place[place as usize - places.start].push((vector, value));
                }
            }
        }
        by_place
    }
}

impl Matrix {
    /// Returns these rows of the matrix of a problem.
    pub fn new(problem: &Problem, rows: Range<usize>) -> Matrix {
        let vectors = Vectors::new(problem);
        let ratio = CONDITION.powf(1.0 / problem.rows as f64);
        let weights: Vec<_> = std::iter::successors(Some(1.0), |weight| Some(weight * ratio))
            .take(problem.rows)
            .collect();
        let mut matrix = Matrix {
            begins: vec![0],
            columns: Vec::new(),
            values: Vec::new(),
        };
        // Sum each row in a dense array; `row_has` marks the columns that are in use.
        let mut row_sum = vec![0.0; problem.rows];
        let mut row_has = vec![false; problem.rows];
        for (row, parts) in rows.clone().zip(vectors.by_place(&rows)) {
            let begin = matrix.columns.len();
            for (vector, value) in parts {
                let scale = weights[vector] * value;
                for &(column, other) in vectors.elements(vector) {
                    let at = column as usize;
                    let mut product = other * scale;
                    if at == row && row == vector {
                        product = product + CONDITION - problem.shift;
                    }
                    if !std::mem::replace(&mut row_has[at], true) {
                        matrix.columns.push(column);
                        row_sum[at] = 0.0;
                    }
                    row_sum[at] += product;
                }
            }
            let columns = &mut matrix.columns[begin..];
            columns.sort_unstable();
            for &column in &*columns {
                row_has[column as usize] = false;
                matrix.values.push(row_sum[column as usize]);
            }
            matrix.begins.push(matrix.columns.len());
        }
        matrix
    }

    /// Returns the number of stored elements.
    pub fn elements(&self) -> usize {
        self.values.len()
    }

    /// Computes `out` = these rows × `vector`.
    pub fn multiply(&self, vector: &[f64], out: &mut [f64]) {
        for (out, row) in out.iter_mut().zip(self.begins.windows(2)) {
            let row = row[0]..row[1];
            *out = dot_sparse(&self.columns[row.clone()], &self.values[row], vector);
        }
    }
}

/// Number of independent sums.
const LANES: usize = 4;

fn dot_sparse(columns: &[u32], values: &[f64], vector: &[f64]) -> f64 {
    let mut sums = [0.0; LANES];
    let (columns, last_columns) = columns.as_chunks::<LANES>();
    let (values, last_values) = values.as_chunks::<LANES>();
    for (columns, values) in columns.iter().zip(values) {
        for lane in 0..LANES {
            sums[lane] += values[lane] * vector[columns[lane] as usize];
        }
    }
    let last = last_columns.iter().zip(last_values);
    let last: f64 = last
        .map(|(column, value)| value * vector[*column as usize])
        .sum();
    sums.iter().sum::<f64>() + last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;

    #[test]
    fn rows_are_the_same_however_they_are_divided() {
        let problem = Problem::new(Class::S);
        let whole = Matrix::new(&problem, 0..problem.rows);
        let mut parts = (vec![0], Vec::new(), Vec::new());
        for rank in 0..3 {
            let part = Matrix::new(&problem, problem.part(rank, 3));
            let base = parts.1.len();
            parts
                .0
                .extend(part.begins[1..].iter().map(|begin| begin + base));
            parts.1.extend(part.columns);
            parts.2.extend(part.values);
        }
        let (begins, columns, values) = parts;
        let parts = Matrix {
            begins,
            columns,
            values,
        };
        assert!(parts == whole);
    }

    #[test]
    fn the_matrix_is_symmetric() {
        let problem = Problem::new(Class::S);
        let matrix = Matrix::new(&problem, 0..problem.rows);
        let at = |row: usize, column: usize| {
            let row = matrix.begins[row]..matrix.begins[row + 1];
            let found = matrix.columns[row.clone()].binary_search(&(column as u32));
            found.map_or(0.0, |at| matrix.values[row.start + at])
        };
        for row in 0..problem.rows {
            assert!(
                at(row, row) < 0.0,
                "the shift is larger than a diagonal element"
            );
            for at_column in matrix.begins[row]..matrix.begins[row + 1] {
                let column = matrix.columns[at_column] as usize;
                let (here, there) = (at(row, column), at(column, row));
                assert!((here - there).abs() <= 1e-14 * here.abs().max(1.0));
            }
        }
    }

    #[test]
    fn a_product_is_a_sum_over_stored_elements() {
        let matrix = Matrix {
            begins: vec![0, 0, 5, 6],
            columns: vec![0, 1, 2, 3, 4, 2],
            values: vec![1.0, 2.0, 3.0, 4.0, 5.0, -1.0],
        };
        let mut out = [9.0; 3];
        matrix.multiply(&[1.0, 10.0, 100.0, 1000.0, 10000.0], &mut out);
        assert_eq!(out, [0.0, 54321.0, -100.0]);
        assert_eq!(matrix.elements(), 6);
    }
}
