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

/// Who reads, and over which edge.
pub(crate) struct Link {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    edge: Option<Linked>,
}

/// What an edge has for its reader.
struct Linked {
    edge: Edge,
    /// As many as the edge has.
    operators: Vec<(String, Arc<dyn Operator>)>,
}

/// The variables of a step, as they come out of the operators of an edge.
pub(crate) struct Passed {
    /// In the order of the writer's; one that an operator cannot take is as the writer has it.
    pub(crate) variables: Vec<Variable>,
    /// `None` for a variable that no operator is for.
    pub(crate) chains: Vec<Option<Result<Chain, GraphError>>>,
}

impl Link {
    /// A reader without an edge: a part of its own is a block.
    pub(crate) fn plain((rank, size): (u32, u32)) -> Link {
        Link {
            rank,
            size,
            edge: None,
        }
    }

    /// # Errors
    /// Operators that are none, or that the program has not registered.
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

    /// With how many tokens the edge begins.
    pub(crate) fn tokens(&self) -> u64 {
        self.edge.as_ref().map_or(0, |linked| linked.edge.tokens)
    }

    /// Checks what was promised of a step.
    ///
    /// # Errors
    /// A promise that was not kept.
    pub(crate) fn check(&self, step: Step, contents: &Contents) -> Result<(), GraphError> {
        match &self.edge {
            Some(linked) => check_step(&linked.edge, step, contents),
            None => Ok(()),
        }
    }

    /// What the operators make of a step; `None` where there are none. `last`: what they made of
    /// the last one.
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

    /// Who gets what of an array.
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

    /// The error of reading from a token.
    pub(crate) fn token_has_no(&self, variable: &str) -> GraphError {
        let edge = self.edge.as_ref().map(|linked| linked.edge.to_string());
        GraphError::Token {
            edge: edge.unwrap_or_default(),
            variable: variable.to_owned(),
        }
    }
}

impl Linked {
    /// `None`: it passes as it is.
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
