//! An edge, as one reader rank sees it.

use super::chain::{Chain, Operators};
use super::edge::{Applied, Edge, Redistribution};
use super::error::GraphError;
use super::numbers::Kind;
use super::operator::{Does, Operator, Registered, parse};
use super::promise::check_step;
use crate::contents::{Contents, Variable};
use crate::protocol::{LayoutHash, Step};
use std::sync::Arc;

/// A reader rank, and its edge.
pub(crate) struct Link {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    edge: Option<Linked>,
}

/// The edge of a reader.
struct Linked {
    edge: Edge,
    /// One per operator of the edge.
    operators: Vec<(String, Arc<dyn Operator>)>,
}

/// The variables of a step after the operators of an edge.
pub(crate) struct Passed {
    /// In the writer's order. If an operator cannot be applied, the variable is as written.
    pub(crate) variables: Vec<Variable>,
    /// `None` for a variable without operators.
    pub(crate) chains: Vec<Option<Result<Chain, GraphError>>>,
}

impl Link {
    /// Returns the link of a reader without an edge: its own part is a block.
    pub(crate) fn plain((rank, size): (u32, u32)) -> Link {
        Link {
            rank,
            size,
            edge: None,
        }
    }

    /// Returns the link of a reader with an edge.
    ///
    /// # Errors
    /// Invalid operators, or operators that the program has not registered.
    pub(crate) fn over(
        edge: &Edge,
        (rank, size): (u32, u32),
        registered: &Registered,
    ) -> Result<Link, GraphError> {
        let operator = |applied: &Applied| {
            let written = parse(&applied.apply)?;
            let operator = match written.does {
                Does::This(operator) => operator,
                Does::Mine(name) => {
                    let found = registered.get(&name).cloned();
                    found.ok_or_else(|| GraphError::NoOperator {
                        edge: edge.to_string(),
                        program: edge.to.clone(),
                        name,
                        there: registered.keys().cloned().collect(),
                    })?
                }
            };
            Ok((written.text, operator))
        };
        let operators: Result<Vec<_>, GraphError> = edge.operators.iter().map(operator).collect();
        let linked = Linked {
            operators: operators?,
            edge: edge.clone(),
        };
        Ok(Link {
            rank,
            size,
            edge: Some(linked),
        })
    }

    /// Returns the number of tokens with which the edge begins.
    pub(crate) fn tokens(&self) -> u64 {
        self.edge.as_ref().map_or(0, |linked| linked.edge.tokens)
    }

    /// Checks the promises about a step.
    ///
    /// # Errors
    /// A broken promise.
    pub(crate) fn check(&self, step: Step, contents: &Contents) -> Result<(), GraphError> {
        match &self.edge {
            Some(linked) => check_step(&linked.edge, step, contents),
            None => Ok(()),
        }
    }

    /// Applies the operators to the layout of a step; `None` if there are none. `last`: the result
    /// for the previous step.
    pub(crate) fn pass(
        &self,
        contents: &Contents,
        last: &mut Option<(LayoutHash, Arc<Passed>)>,
    ) -> Option<Arc<Passed>> {
        let linked = self.edge.as_ref()?;
        if linked.operators.is_empty() {
            return None;
        }
        if let Some((hash, passed)) = last
            && *hash == contents.hash
        {
            return Some(passed.clone());
        }
        let passed = Arc::new(linked.pass(contents));
        *last = Some((contents.hash, passed.clone()));
        Some(passed)
    }

    /// Returns how an array is distributed.
    ///
    /// # Errors
    /// An edge that leaves it to the readers.
    pub(crate) fn redistribution(&self) -> Result<Redistribution, GraphError> {
        match &self.edge {
            None => Ok(Redistribution::Block),
            Some(linked) => match linked.edge.redistribute {
                Redistribution::Box => Err(GraphError::NothingIsMine {
                    edge: linked.edge.to_string(),
                }),
                how => Ok(how),
            },
        }
    }

    /// Returns the error for a reader's own part that has more than `most` boxes.
    pub(crate) fn too_many_boxes(&self, variable: &str, most: usize) -> GraphError {
        let edge = self.edge.as_ref().map(|linked| linked.edge.to_string());
        GraphError::TooManyBoxes {
            edge: edge.unwrap_or_default(),
            variable: variable.to_owned(),
            most: most as u64,
        }
    }

    /// Returns the error for reading from a token.
    pub(crate) fn token_has_no(&self, variable: &str) -> GraphError {
        let edge = self.edge.as_ref().map(|linked| linked.edge.to_string());
        GraphError::Token {
            edge: edge.unwrap_or_default(),
            variable: variable.to_owned(),
        }
    }
}

impl Linked {
    /// Returns the operators for a variable; `None` if it passes unchanged.
    fn operators_for(&self, variable: &str) -> Option<Operators> {
        let written = self.edge.operators.iter().zip(&self.operators);
        let those = written.filter(|(applied, _)| applied.is_for(variable));
        let operators: Operators = those.map(|(_, operator)| operator.clone()).collect();
        (!operators.is_empty()).then_some(operators)
    }

    fn pass(&self, contents: &Contents) -> Passed {
        let edge = self.edge.to_string();
        let chains = contents.variables.iter().map(|variable| {
            let info = &variable.info;
            let input = Kind {
                dtype: info.dtype,
                shape: info.shape.clone(),
            };
            let operators = self.operators_for(&info.name)?;
            Some(Chain::new(&edge, &info.name, operators, input))
        });
        let chains: Vec<_> = chains.collect();
        let variables = contents.variables.iter().zip(&chains);
        let variables = variables.map(|(variable, chain)| {
            let mut info = variable.info.clone();
            if let Some(Ok(chain)) = chain {
                let Kind { dtype, shape } = chain.result().clone();
                (info.dtype, info.shape) = (dtype, shape);
            }
            info
        });
        Passed {
            variables: variables.collect(),
            chains,
        }
    }
}
