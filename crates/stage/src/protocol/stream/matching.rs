//! What a committed step contains of a box: found by the index of its blocks, once per layout.
//!
//! Layouts change rarely, and subscriptions to the same variable share its index: in a steady
//! stream, a commit costs a comparison of hashes per subscription.

use super::Stream;
use crate::index::Index;
use crate::protocol::{Fault, Interest, Layout, LayoutHash, Step, Written};
use crate::space::Dims;
use crate::{Dtype, Region};
use std::collections::HashMap;

/// What a layout contains of a box, without the step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Found {
    /// There is no such variable.
    NoVariable,
    /// No block touches the box.
    Nothing,
    Part {
        dtype: Dtype,
        shape: Dims,
        region: Region,
        elements: u64,
    },
    /// The box does not fit the variable.
    Misfit { shape: Dims },
}

/// The requested variables of one layout.
#[derive(Debug, Default)]
pub(super) struct Matcher {
    of: Option<LayoutHash>,
    variables: HashMap<String, Option<Indexed>>,
}

#[derive(Debug)]
struct Indexed {
    dtype: Dtype,
    shape: Dims,
    index: Index,
}

impl Matcher {
    /// Returns what the step with the layouts `layouts`, whose hash is `of`, contains of a box.
    pub(super) fn find<'l>(
        &mut self,
        of: LayoutHash,
        layouts: impl Iterator<Item = &'l Layout>,
        interest: &Interest,
    ) -> Found {
        if self.of != Some(of) {
            self.of = Some(of);
            self.variables.clear();
        }
        let indexed = match self.variables.get(&interest.variable) {
            Some(indexed) => indexed,
            None => self
                .variables
                .entry(interest.variable.clone())
                .or_insert_with(|| Indexed::new(layouts, &interest.variable)),
        };
        match indexed {
            Some(indexed) => indexed.find(interest),
            None => Found::NoVariable,
        }
    }
}

impl Indexed {
    fn new<'l>(layouts: impl Iterator<Item = &'l Layout>, name: &str) -> Option<Self> {
        let mut known: Option<(Dtype, Dims)> = None;
        let mut regions = Vec::new();
        for layout in layouts {
            let variables = layout.variables.iter();
            for variable in variables.filter(|variable| variable.name == name) {
                known.get_or_insert_with(|| (variable.dtype, variable.shape.clone()));
                regions.extend(variable.blocks.iter().map(|block| block.region.clone()));
            }
        }
        let (dtype, shape) = known?;
        // Blocks of committed parts have the dimensions of their array, so they can be indexed.
        let index = Index::new(&regions).ok()?;
        Some(Indexed {
            dtype,
            shape,
            index,
        })
    }

    fn find(&self, interest: &Interest) -> Found {
        let whole = Region::whole(&self.shape);
        let asked = match &interest.region {
            Some(region) => Some(region.clone()),
            None => whole.as_ref().ok().cloned(),
        };
        let fits = |asked: &Region| {
            whole
                .as_ref()
                .is_ok_and(|whole| whole.dims() == asked.dims() && whole.contains(asked))
        };
        let Some(asked) = asked.filter(fits) else {
            return Found::Misfit {
                shape: self.shape.clone(),
            };
        };
        let mut found: Option<(Region, u64)> = None;
        for (_, part) in self.index.query(&asked) {
            // Blocks never overlap, so their volumes add up.
            let more = part.volume().unwrap_or(u64::MAX);
            found = Some(match found {
                None => (part, more),
                Some((around, elements)) => (both(&around, &part), elements.saturating_add(more)),
            });
        }
        match found {
            None => Found::Nothing,
            Some((region, elements)) => Found::Part {
                dtype: self.dtype,
                shape: self.shape.clone(),
                region,
                elements,
            },
        }
    }
}

/// Returns the smallest box around two boxes of the same number of dimensions.
fn both(one: &Region, other: &Region) -> Region {
    let lower = one
        .lower()
        .iter()
        .zip(other.lower())
        .map(|(a, b)| *a.min(b));
    let upper = one
        .upper()
        .iter()
        .zip(other.upper())
        .map(|(a, b)| *a.max(b));
    let (lower, upper): (Dims, Dims) = (lower.collect(), upper.collect());
    Region::new(&lower, &upper).unwrap_or_else(|_| one.clone())
}

impl Stream {
    /// Returns what a stored step contains of a box, and the hash of its layouts.
    pub(super) fn find(&mut self, step: Step, interest: &Interest) -> Option<(LayoutHash, Found)> {
        let (of, layouts) = self.store.layouts(step)?;
        Some((of, self.matcher.find(of, layouts, interest)))
    }

    /// Returns true if a stored step is for a group with that interest: the box was written, or
    /// does not fit the variable, which the reader is to see.
    pub(super) fn touches(&mut self, step: Step, only: Option<&Interest>) -> bool {
        only.is_none_or(|only| {
            let found = self.find(step, only);
            found.is_some_and(|(_, found)| !matches!(found, Found::NoVariable | Found::Nothing))
        })
    }
}

impl Found {
    /// Returns what a subscriber is told of step `step`; `None` for nothing.
    pub(crate) fn told(&self, step: Step, interest: &Interest) -> Option<Result<Written, Fault>> {
        match self {
            Found::NoVariable | Found::Nothing => None,
            Found::Part {
                dtype,
                shape,
                region,
                elements,
            } => Some(Ok(Written {
                step,
                variable: interest.variable.clone(),
                dtype: *dtype,
                shape: shape.clone(),
                region: region.clone(),
                elements: *elements,
            })),
            Found::Misfit { shape } => Some(Err(Fault::NoSuchBox {
                step,
                interest: Box::new(interest.clone()),
                shape: shape.to_vec(),
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Block, Variable};
    use proptest::prelude::*;

    /// Returns layouts of two ranks with these boxes of `u`, whose shape is 20 x 20.
    fn layouts(boxes: &[Vec<Region>]) -> Vec<Layout> {
        let of = |boxes: &Vec<Region>| Layout {
            variables: vec![Variable {
                name: "u".into(),
                dtype: Dtype::F32,
                shape: Dims::from_slice(&[20, 20]),
                attributes: Vec::new(),
                blocks: boxes
                    .iter()
                    .map(|region| Block {
                        region: region.clone(),
                        slot: 0,
                    })
                    .collect(),
            }],
        };
        boxes.iter().map(of).collect()
    }

    fn cell_of(region: &Region, y: u64, x: u64) -> bool {
        let (lower, upper) = (region.lower(), region.upper());
        (lower[0]..upper[0]).contains(&y) && (lower[1]..upper[1]).contains(&x)
    }

    proptest! {
        /// Boxes of a grid whose cells are assigned to one of two ranks or to none: compared cell
        /// by cell.
        #[test]
        fn the_part_of_a_box_is_what_the_cells_say(
            dealt in proptest::collection::vec(0u8..3, 16),
            corner in (0u64..20, 0u64..20),
            extent in (1u64..20, 1u64..20),
        ) {
            let mut boxes = vec![Vec::new(), Vec::new()];
            for (at, rank) in dealt.iter().enumerate().filter(|(_, rank)| **rank < 2) {
                let lower = [at as u64 / 4 * 5, at as u64 % 4 * 5];
                boxes[*rank as usize].push(Region::at(&lower, &[5, 5]).unwrap());
            }
            let upper = [(corner.0 + extent.0).min(20), (corner.1 + extent.1).min(20)];
            let asked = Region::new(&[corner.0, corner.1], &upper).unwrap();
            let layouts = layouts(&boxes);
            let interest = Interest { variable: "u".into(), region: Some(asked.clone()) };
            let found = Matcher::default().find(LayoutHash(1), layouts.iter(), &interest);
            let all: Vec<&Region> = boxes.iter().flatten().collect();
            let cells = (0..400).map(|at| (at / 20, at % 20));
            let written: Vec<(u64, u64)> = cells
                .filter(|&(y, x)| cell_of(&asked, y, x) && all.iter().any(|b| cell_of(b, y, x)))
                .collect();
            match found {
                Found::NoVariable | Found::Nothing => prop_assert!(written.is_empty()),
                Found::Part { region, elements, .. } => {
                    prop_assert_eq!(elements, written.len() as u64);
                    let rows = written.iter().map(|cell| cell.0);
                    let columns = written.iter().map(|cell| cell.1);
                    let least = [rows.clone().min().unwrap(), columns.clone().min().unwrap()];
                    let most = [rows.max().unwrap() + 1, columns.max().unwrap() + 1];
                    prop_assert_eq!(region, Region::new(&least, &most).unwrap());
                }
                Found::Misfit { .. } => prop_assert!(false, "the box is inside"),
            }
        }
    }

    #[test]
    fn another_layout_is_looked_at_anew() {
        let region = |lower: u64| Region::at(&[lower, 0], &[5, 20]).unwrap();
        let (one, other) = (layouts(&[vec![region(0)]]), layouts(&[vec![region(10)]]));
        let mut matcher = Matcher::default();
        let asked = |region| Interest {
            variable: "u".into(),
            region,
        };
        let found = matcher.find(LayoutHash(1), one.iter(), &asked(Some(region(10))));
        assert_eq!(found, Found::Nothing);
        let found = matcher.find(LayoutHash(2), other.iter(), &asked(Some(region(10))));
        assert!(
            matches!(found, Found::Part { elements: 100, .. }),
            "{found:?}"
        );
        let found = matcher.find(LayoutHash(2), other.iter(), &asked(None));
        assert!(
            matches!(found, Found::Part { elements: 100, .. }),
            "{found:?}"
        );
        for wrong in [&[0, 0][..], &[0, 0, 0]] {
            let extent = vec![21; wrong.len()];
            let wrong = Region::at(wrong, &extent).unwrap();
            let found = matcher.find(LayoutHash(2), other.iter(), &asked(Some(wrong)));
            let shape = Dims::from_slice(&[20, 20]);
            assert_eq!(found, Found::Misfit { shape });
        }
    }
}
