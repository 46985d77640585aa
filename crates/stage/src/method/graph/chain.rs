//! Applies the operators of an edge, one after another, to a variable.
//!
//! A box of the final result is computed slab by slab, so that intermediate results stay in the
//! cache, however large the box is.

use super::error::GraphError;
use super::numbers::{Input, Kind, Tile};
use super::operator::Operator;
use crate::{Error, Region, Result};
use std::sync::Arc;

/// Approximate bytes of the input from which a slab is computed.
const SLAB: u64 = 1 << 20;

/// Operators, with their text.
pub(crate) type Operators = Arc<[(String, Arc<dyn Operator>)]>;

/// The operators of an edge, for one variable.
pub(crate) struct Chain {
    edge: String,
    variable: String,
    operators: Operators,
    /// Of the input of each operator, and of the final result.
    kinds: Vec<Kind>,
}

/// A box of the writer's array.
pub(crate) enum Source<'a> {
    /// In a block that is mapped here: the box of the block, and its bytes.
    Block(&'a Region, &'a [u8]),
    Copied(Tile),
}

impl Chain {
    /// # Errors
    /// An operator that cannot be applied to such an array.
    pub(crate) fn new(
        edge: &str,
        variable: &str,
        operators: Operators,
        input: Kind,
    ) -> Result<Chain, GraphError> {
        let mut chain = Chain {
            edge: edge.to_owned(),
            variable: variable.to_owned(),
            kinds: vec![input],
            operators,
        };
        for at in 0..chain.operators.len() {
            let result = chain.operators[at].1.result(&chain.kinds[at]);
            let kind = result.map_err(|why| chain.unfit(at, why))?;
            chain.kinds.push(kind);
        }
        Ok(chain)
    }

    /// Returns type and shape of the final result.
    pub(crate) fn result(&self) -> &Kind {
        &self.kinds[self.kinds.len() - 1]
    }

    fn unfit(&self, at: usize, why: String) -> GraphError {
        GraphError::Operator {
            edge: self.edge.clone(),
            operator: self.operators[at].0.clone(),
            variable: self.variable.clone(),
            why,
        }
    }

    /// Returns the box of the writer's array from which a box of the final result is computed.
    pub(crate) fn source_of(&self, asked: &Region) -> Result<Region> {
        Ok(self.needs(asked.clone())?.swap_remove(0))
    }

    /// Computes a box of the final result, dense and row-major, into `into`; `fetch` reads boxes of
    /// the writer's array.
    pub(crate) fn read<'a>(
        &self,
        asked: &Region,
        into: &mut [u8],
        fetch: impl Fn(&Region) -> Result<Source<'a>>,
    ) -> Result<()> {
        if asked.is_empty() {
            return Ok(());
        }
        let rows = self.rows_of_slab(asked)?;
        let (mut rest, mut into) = (asked.clone(), into);
        while !rest.is_empty() {
            let (slab, after) = rest.cut(0, rest.lower()[0].saturating_add(rows));
            let bytes = slab.bytes(self.result().dtype.bytes())? as usize;
            let (now, later) = into.split_at_mut(bytes);
            now.copy_from_slice(self.compute(slab, &fetch)?.bytes());
            (rest, into) = (after, later);
        }
        Ok(())
    }

    /// Returns how many requested rows need about a slab of the input.
    fn rows_of_slab(&self, asked: &Region) -> Result<u64> {
        let row = asked.cut(0, asked.lower()[0] + 1).0;
        let needs = self.needs(row)?;
        let bytes = needs[0].bytes(self.kinds[0].dtype.bytes())?;
        Ok((SLAB / bytes.max(1)).max(1))
    }

    /// Returns the box that each operator's input needs for `asked`, followed by `asked` itself.
    fn needs(&self, asked: Region) -> Result<Vec<Region>> {
        let mut needs = vec![asked];
        for at in (0..self.operators.len()).rev() {
            let after = &needs[needs.len() - 1];
            let need = self.operators[at].1.needs(&self.kinds[at], after);
            let whole = Region::whole(&self.kinds[at].shape)?;
            let need = need.and_then(|need| match whole.contains(&need) && !need.is_empty() {
                true => Ok(need),
                false => Err(format!("it needs {need} of an array of {whole}")),
            });
            needs.push(need.map_err(|why| self.unfit(at, why))?);
        }
        needs.reverse();
        Ok(needs)
    }

    fn compute<'a>(
        &self,
        slab: Region,
        fetch: &impl Fn(&Region) -> Result<Source<'a>>,
    ) -> Result<Tile> {
        let needs = self.needs(slab)?;
        let source = fetch(&needs[0])?;
        let mut last: Option<Tile> = None;
        for (at, (_, operator)) in self.operators.iter().enumerate() {
            let input = match (&last, &source) {
                (Some(tile), _) | (None, Source::Copied(tile)) => tile.input(),
                (None, Source::Block(block, bytes)) => {
                    Input::new(self.kinds[0].dtype, &needs[0], block, bytes)
                }
            };
            let mut into = Tile::zeros(self.kinds[at + 1].dtype, needs[at + 1].clone())?;
            let applied = operator.apply(&input, &mut into);
            applied.map_err(|why| self.unfit(at, why))?;
            last = Some(into);
        }
        last.ok_or_else(|| Error::Nonsense("a chain without operators".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::operator::{Does, parse};
    use super::*;
    use crate::Dtype;
    use crate::space::Dims;
    use proptest::prelude::*;

    fn operators(texts: &[String]) -> Operators {
        let operator = |text: &String| match parse(text).unwrap().does {
            Does::This(operator) => (text.clone(), operator),
            Does::Mine(name) => panic!("{name}"),
        };
        texts.iter().map(operator).collect()
    }

    /// Returns the number at a point of the input.
    fn number(at: &[u64]) -> f64 {
        at.iter().fold(0.0, |sum, x| sum * 31.0 + *x as f64) - 40.0
    }

    /// Returns the number at a point of the result of the first operators.
    fn naive(texts: &[String], shapes: &[Dims], at: &[u64]) -> f64 {
        let Some((last, before)) = texts.split_last() else {
            return number(at);
        };
        let (word, rest) = last.split_once(' ').unwrap();
        let value: f64 = rest.parse().unwrap_or(0.0);
        match word {
            "as" => naive(before, shapes, at),
            "scale" => naive(before, shapes, at) * value,
            "offset" => naive(before, shapes, at) + value,
            "stride" => {
                let at: Vec<u64> = at.iter().map(|x| x * value as u64).collect();
                naive(before, shapes, &at)
            }
            _ => {
                let shape = &shapes[before.len()];
                let ends = at.iter().zip(shape);
                let upper: Vec<u64> = ends
                    .map(|(x, end)| ((x + 1) * value as u64).min(*end))
                    .collect();
                let lower: Vec<u64> = at.iter().map(|x| x * value as u64).collect();
                let places = places(&Region::new(&lower, &upper).unwrap());
                let numbers: Vec<f64> = places.iter().map(|at| naive(before, shapes, at)).collect();
                numbers.iter().sum::<f64>() / numbers.len() as f64
            }
        }
    }

    fn places(region: &Region) -> Vec<Vec<u64>> {
        let mut places = vec![vec![]];
        for dim in 0..region.dims() {
            let range = region.lower()[dim]..region.upper()[dim];
            let longer = |place: Vec<u64>| range.clone().map(move |x| [&place[..], &[x]].concat());
            places = places.into_iter().flat_map(longer).collect();
        }
        places
    }

    fn input(dtype: Dtype, region: &Region) -> Tile {
        let mut tile = Tile::zeros(dtype, region.clone()).unwrap();
        let numbers: Vec<f64> = places(region).iter().map(|at| number(at)).collect();
        match dtype {
            Dtype::I32 => {
                let all = tile.view_mut::<i32>().unwrap();
                all.into_iter()
                    .zip(numbers)
                    .for_each(|(to, x)| *to = x as i32);
            }
            _ => {
                let all = tile.view_mut::<f64>().unwrap();
                all.into_iter().zip(numbers).for_each(|(to, x)| *to = x);
            }
        }
        tile
    }

    fn read(chain: &Chain, asked: &Region, in_place: bool) -> Vec<u8> {
        let Kind { dtype, shape } = chain.kinds[0].clone();
        let block = Region::whole(&shape).unwrap();
        let whole = input(dtype, &block);
        let mut into = vec![0; asked.bytes(chain.result().dtype.bytes()).unwrap() as usize];
        let fetch = |needed: &Region| match in_place {
            true => Ok(Source::Block(&block, whole.bytes())),
            false => Ok(Source::Copied(input(dtype, needed))),
        };
        chain.read(asked, &mut into, fetch).unwrap();
        into
    }

    fn operator() -> impl Strategy<Value = String> {
        let sampled = [
            "scale 0.5",
            "offset -3.25",
            "stride 1",
            "stride 2",
            "stride 3",
            "mean 2",
            "mean 3",
            "as f64",
        ];
        proptest::sample::select(sampled.map(str::to_owned).to_vec())
    }

    proptest! {
        #[test]
        fn any_box_is_what_every_element_alone_is(
            shape in proptest::collection::vec(1u64..8, 1..4),
            corners in proptest::collection::vec((0u64..8, 0u64..8), 3),
            texts in proptest::collection::vec(operator(), 1..4),
            integers in any::<bool>(),
        ) {
            let dtype = if integers { Dtype::I32 } else { Dtype::F64 };
            let kind = Kind { dtype, shape: Dims::from_slice(&shape) };
            let chain = Chain::new("a/s -> b/s", "u", operators(&texts), kind).unwrap();
            let end = &chain.result().shape;
            let lower: Vec<u64> = end.iter().zip(&corners).map(|(end, corner)| corner.0 % (end + 1)).collect();
            let upper = lower.iter().zip(end).zip(&corners).map(|((lower, end), corner)| lower + corner.1 % (end - lower + 1));
            let asked = Region::new(&lower, &upper.collect::<Vec<_>>()).unwrap();

            let found = read(&chain, &asked, true);
            prop_assert_eq!(&found, &read(&chain, &asked, false), "the same numbers, elsewhere");
            let shapes: Vec<Dims> = chain.kinds.iter().map(|kind| kind.shape.clone()).collect();
            let expected: Vec<f64> = places(&asked).iter().map(|at| naive(&texts, &shapes, at)).collect();
            let found: Vec<f64> = match chain.result().dtype {
                Dtype::I32 => found.chunks(4).map(|word| f64::from(i32::from_ne_bytes(word.try_into().unwrap()))).collect(),
                _ => found.chunks(8).map(|word| f64::from_ne_bytes(word.try_into().unwrap())).collect(),
            };
            prop_assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                prop_assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{} {}", found, expected);
            }
        }

        #[test]
        fn a_box_has_the_bits_of_the_whole(rows in 1u64..200, columns in 1u64..40, from in 0u64..200, texts in proptest::collection::vec(operator(), 1..4)) {
            let kind = Kind { dtype: Dtype::F64, shape: Dims::from_slice(&[rows, columns]) };
            let chain = Chain::new("a/s -> b/s", "u", operators(&texts), kind).unwrap();
            let whole = Region::whole(&chain.result().shape).unwrap();
            let part = whole.cut(0, from).1;
            let skipped = whole.cut(0, from).0.bytes(8).unwrap() as usize;
            prop_assert_eq!(&read(&chain, &whole, true)[skipped..], &read(&chain, &part, false));
        }
    }

    #[test]
    fn types_are_converted_as_rust_does() {
        let texts = ["scale 1000".to_owned(), "as u8".to_owned()];
        let kind = Kind {
            dtype: Dtype::F64,
            shape: Dims::from_slice(&[41]),
        };
        let chain = Chain::new("a/s -> b/s", "u", operators(&texts), kind).unwrap();
        assert_eq!(chain.result().dtype, Dtype::U8);
        let found = read(&chain, &Region::new(&[39], &[41]).unwrap(), true);
        assert_eq!(found, [0, 0], "-1000 and 0");
        let texts = ["scale -1000".to_owned(), "as u8".to_owned()];
        let kind = Kind {
            dtype: Dtype::F64,
            shape: Dims::from_slice(&[41]),
        };
        let chain = Chain::new("a/s -> b/s", "u", operators(&texts), kind).unwrap();
        assert_eq!(
            read(&chain, &Region::new(&[39], &[41]).unwrap(), true),
            [255, 0]
        );
    }

    #[test]
    fn a_large_box_is_read_slab_by_slab() {
        let kind = Kind {
            dtype: Dtype::F64,
            shape: Dims::from_slice(&[2048, 256]),
        };
        let texts = ["mean 2".to_owned(), "scale 4".to_owned()];
        let chain = Chain::new("a/s -> b/s", "u", operators(&texts), kind).unwrap();
        let asked = Region::whole(&[1024, 128]).unwrap();
        let (mut into, most) = (vec![0; 1024 * 128 * 8], std::cell::Cell::new(0));
        let fetch = |needed: &Region| {
            most.set(most.get().max(needed.bytes(8).unwrap()));
            Ok(Source::Copied(input(Dtype::F64, needed)))
        };
        chain.read(&asked, &mut into, fetch).unwrap();
        assert!(most.get() <= SLAB, "{} bytes at once", most.get());
        let numbers: &[f64] = bytemuck::cast_slice(&into);
        let exact = |y: u64, x: u64| 4.0 * (number(&[2 * y, 2 * x]) + 16.0);
        assert_eq!(numbers[0], exact(0, 0));
        assert_eq!(numbers[1023 * 128 + 127], exact(1023, 127));
    }

    #[test]
    fn an_operator_that_cannot_is_named() {
        struct Never;
        impl Operator for Never {
            fn result(&self, input: &Kind) -> Result<Kind, String> {
                Err(format!("it does not accept {}", input.dtype))
            }
            fn needs(&self, _: &Kind, asked: &Region) -> Result<Region, String> {
                Ok(asked.clone())
            }
            fn apply(&self, _: &Input<'_>, _: &mut Tile) -> Result<(), String> {
                Ok(())
            }
        }
        /// Needs a box outside its input.
        struct Beyond;
        impl Operator for Beyond {
            fn result(&self, input: &Kind) -> Result<Kind, String> {
                Ok(input.clone())
            }
            fn needs(&self, _: &Kind, asked: &Region) -> Result<Region, String> {
                Region::at(&[0], &[asked.upper()[0] + 1]).map_err(|error| error.to_string())
            }
            fn apply(&self, _: &Input<'_>, _: &mut Tile) -> Result<(), String> {
                Ok(())
            }
        }
        let kind = || Kind {
            dtype: Dtype::F64,
            shape: Dims::from_slice(&[4]),
        };
        let with = |name: &str, operator: Arc<dyn Operator>| {
            Chain::new(
                "a/s -> b/s",
                "u",
                Arc::new([(name.to_owned(), operator)]),
                kind(),
            )
        };
        let error = with("mine:never", Arc::new(Never))
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("mine:never") && error.contains("it does not accept f64"),
            "{error}"
        );
        let chain = with("mine:beyond", Arc::new(Beyond)).unwrap();
        let read = chain.read(&Region::whole(&[4]).unwrap(), &mut [0; 32], |needed| {
            Ok(Source::Copied(input(Dtype::F64, needed)))
        });
        let error = read.unwrap_err().to_string();
        assert!(
            error.contains("[0..5]") && error.contains("mine:beyond"),
            "{error}"
        );
    }

    /// Needs nothing of its input.
    struct Nothing;

    impl Operator for Nothing {
        fn result(&self, input: &Kind) -> std::result::Result<Kind, String> {
            Ok(input.clone())
        }

        fn needs(&self, _: &Kind, _: &Region) -> std::result::Result<Region, String> {
            Region::at(&[0], &[0]).map_err(|error| error.to_string())
        }

        fn apply(&self, _: &Input<'_>, _: &mut Tile) -> std::result::Result<(), String> {
            Ok(())
        }
    }

    /// No operator is asked what it needs for an empty box.
    #[test]
    fn an_operator_that_needs_nothing_is_refused() {
        let mut all = operators(&["stride 2".to_owned()]).to_vec();
        all.push(("mine:nothing".into(), Arc::new(Nothing)));
        let input = Kind {
            dtype: Dtype::F64,
            shape: Dims::from_slice(&[4]),
        };
        let chain = Chain::new("edge", "u", all.into(), input).unwrap();
        let refused = chain.needs(Region::whole(&[2]).unwrap());
        assert!(
            matches!(refused, Err(Error::Graph(GraphError::Operator { .. }))),
            "{refused:?}"
        );
    }
}
