//! The edges of a workflow: from the words of the file to what streams are opened with. What can be known before a unit starts is
//! checked here.

use samite::config::{Bytes, Resolved, StageConfig, Steps, Worded};
use samite::stage::Method;
use samite::stage::method::graph::{
    Applied, Cut, Edge, Extent, Promise, Redistribution, check_cycles, check_operators, dtype,
};
use samite::stage::protocol::{Limits, Policy};
use samite::stage::space::Dims;
use samite_launch::{EdgeKey, Error, Workflow};
use std::str::FromStr;

/// The edges of a workflow whose streams have these settings. What the command line or the environment says of a stream
/// counts more than the words of its edge.
///
/// # Errors
/// [`Error::Workflow`], with the line of the edge that cannot be.
pub(crate) fn edges(workflow: &Workflow, settings: &Resolved) -> Result<Vec<Edge>, Error> {
    let stage = &settings.config.stage;
    let mut written = workflow.edges()?;
    for edge in &mut written {
        let names = [edge.stream.clone(), edge.name.clone()];
        let is_said = |key: &str| {
            let mut names = names.iter();
            names.any(|name| settings.is_of_this_run(&format!("stage.{name}.{key}")))
        };
        for (word, key) in [
            (&mut edge.rate, "policy"),
            (&mut edge.limit_steps, "limit_steps"),
            (&mut edge.limit_bytes, "limit_bytes"),
        ] {
            if is_said(key) {
                *word = None;
            }
        }
    }
    let edges = written.iter().enumerate();
    let edges = edges.map(|(at, written)| Reading { workflow, at }.edge(written));
    let edges: Vec<Edge> = edges.collect::<Result<_, _>>()?;
    check_methods(workflow, stage, &edges)?;
    // With other methods there are no tokens, and who waits for whom is the programs' own business.
    let settings = stage.configuration();
    let is_graph = |edge: &Edge| settings.stream(&edge.stream).method == Method::Graph;
    let graph = edges.iter().cloned().enumerate();
    let (numbers, graph): (Vec<usize>, Vec<Edge>) =
        graph.filter(|(_, edge)| is_graph(edge)).unzip();
    check_cycles(&graph).map_err(|(at, error)| {
        workflow.edge_error(numbers[at], EdgeKey::From, error.to_string())
    })?;
    Ok(edges)
}

/// What only the method `graph` does is not said of a stream that has another one.
fn check_methods(workflow: &Workflow, stage: &StageConfig, edges: &[Edge]) -> Result<(), Error> {
    let settings = stage.configuration();
    for (at, edge) in edges.iter().enumerate() {
        // A reader finds the settings by its own name of the stream, a writer by its.
        let names = [&edge.stream, &edge.name];
        let all = names.map(|name| settings.stream(name).method == Method::Graph);
        if all[0] != all[1] {
            let message = format!(
                "the stream is `{}` for {} and `{}` for {}, and only one of the two has the method `graph`: give both the same",
                edge.stream, edge.from, edge.name, edge.to
            );
            return Err(workflow.edge_error(at, EdgeKey::As, message));
        }
        if let (Some(word), false) = (edge.needs_graph(), all[0]) {
            let key = match word {
                "redistribute" => EdgeKey::Redistribute,
                "operators" => EdgeKey::Operator(0),
                "tokens" => EdgeKey::Tokens,
                _ => EdgeKey::As,
            };
            let message = format!(
                "`{word}` is for streams with the method `graph`, and `{}` has another one: set `stage.method = \"graph\"` in [config], or leave it out",
                edge.stream
            );
            return Err(workflow.edge_error(at, key, message));
        }
    }
    Ok(())
}

/// Reads the words of one edge.
struct Reading<'w> {
    workflow: &'w Workflow,
    at: usize,
}

impl Reading<'_> {
    fn edge(&self, written: &samite_launch::Edge) -> Result<Edge, Error> {
        let redistribute = self.word(EdgeKey::Redistribute, &written.redistribute)?;
        let policy: Option<Worded<Policy>> = self.word(EdgeKey::Rate, &written.rate)?;
        let promises = written.variables.iter().enumerate();
        let promises = promises.map(|(number, promise)| self.promise(number, promise));
        let operators = written.operators.iter().map(|operator| Applied {
            apply: operator.apply.clone(),
            variables: operator.variables.clone(),
        });
        let edge = Edge {
            redistribute: redistribute.unwrap_or(Redistribution::Box),
            policy: policy.map(|word| word.0),
            limits: self.limits(written)?,
            operators: operators.collect(),
            tokens: written.tokens,
            variables: promises.collect::<Result<_, _>>()?,
            name: written.name.clone(),
            ..Edge::new(&written.from, &written.stream, &written.to)
        };
        check_operators(&edge)
            .map_err(|(operator, error)| self.wrong(EdgeKey::Operator(operator), error))?;
        Ok(edge)
    }

    fn promise(&self, number: usize, written: &samite_launch::Promise) -> Result<Promise, Error> {
        let wrong = |error| self.wrong(EdgeKey::Variable(number), error);
        let cut = written.cut.as_deref().map(Cut::from_str).transpose();
        let extent = written.extent.as_ref().map(|extent| match extent {
            samite_launch::Extent::Block(block) => Extent::Block(Dims::from_slice(block)),
            samite_launch::Extent::Shape(shape) => Extent::Shape(Dims::from_slice(shape)),
        });
        Ok(Promise {
            name: written.name.clone(),
            dtype: dtype(&written.dtype).map_err(wrong)?,
            extent,
            cut: cut.map_err(wrong)?,
            every: written.every,
        })
    }

    fn limits(&self, written: &samite_launch::Edge) -> Result<Option<Limits>, Error> {
        let steps: Option<Steps> = self.word(EdgeKey::LimitSteps, &written.limit_steps)?;
        let bytes: Option<Bytes> = self.word(EdgeKey::LimitBytes, &written.limit_bytes)?;
        Ok(match (steps, bytes) {
            (None, None) => None,
            (steps, bytes) => Some(Limits {
                steps: steps.map_or(2, |steps| steps.0),
                // Whole numbers of the text that units get have 63 bits.
                bytes: bytes.map_or(i64::MAX as u64, Bytes::get),
            }),
        })
    }

    fn word<T: FromStr<Err: ToString>>(
        &self,
        key: EdgeKey,
        text: &Option<String>,
    ) -> Result<Option<T>, Error> {
        let parsed = text.as_ref().map(|text| text.parse());
        parsed
            .transpose()
            .map_err(|error: T::Err| self.wrong(key, error))
    }

    fn wrong(&self, key: EdgeKey, error: impl ToString) -> Error {
        self.workflow.edge_error(self.at, key, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite::config::Layers;
    use std::path::Path;

    /// The edges of a workflow with three programs, whose streams have this method.
    fn read(method: &str, text: &str) -> Result<Vec<Edge>, String> {
        let programs =
            ["a", "b", "c"].map(|name| format!("[[program]]\nname = '{name}'\ncommand = 'sh'\n"));
        let text = programs.concat() + text;
        let workflow = Workflow::parse(Path::new("graph.toml"), text).expect("well-formed");
        let layers = Layers::default().assignment(&format!("stage.method={method}"));
        let settings = layers.expect("a setting").resolve().expect("a method");
        edges(&workflow, &settings).map_err(|error| error.to_string())
    }

    fn edge(from: &str, to: &str, rest: &str) -> String {
        format!("[[edge]]\nfrom = '{from}'\nstream = '{from}{to}'\nto = '{to}'\n{rest}\n")
    }

    #[test]
    fn words_become_an_edge() {
        let text = edge(
            "a",
            "b",
            "as = 'input'\nredistribute = 'round'\nrate = 'every 3'\nlimit_bytes = '1 MiB'\noperators = ['mean 2', { apply = 'as f32', variables = ['u'] }]\ntokens = 1\nvariables = [{ name = 'u', dtype = 'f32', shape = '4,4', cut = 'columns' }]",
        );
        let edge = read("graph", &text).expect("well-formed").remove(0);
        assert_eq!(edge.to_string(), "a/ab -> b/input");
        assert_eq!(edge.redistribute, Redistribution::Round);
        assert_eq!(edge.policy, Some(Policy::Every(3)));
        let limits = edge.limits.expect("limits");
        assert_eq!((limits.steps, limits.bytes), (2, 1 << 20));
        assert_eq!((edge.operators.len(), edge.tokens), (2, 1));
        assert!(edge.operators[0].is_for("v") && !edge.operators[1].is_for("v"));
        assert_eq!(edge.variables[0].cut, Some(Cut::Columns));
        let config = samite::config::Config {
            edge: vec![edge.clone()],
            ..Default::default()
        };
        let shipped = samite::config::Config::from_toml(&config.to_toml()).expect("as it was");
        assert_eq!(shipped, config, "units get what the launcher has");
    }

    #[test]
    fn the_command_line_beats_the_words_of_an_edge() {
        let text = edge(
            "a",
            "b",
            "as = 'input'\nrate = 'every 3'\nlimit_steps = '3 steps'\nlimit_bytes = '1 MiB'",
        );
        let programs =
            ["a", "b"].map(|name| format!("[[program]]\nname = '{name}'\ncommand = 'sh'\n"));
        let text = programs.concat() + &text;
        let workflow = Workflow::parse(Path::new("graph.toml"), text).expect("well-formed");
        let with = |settings: &[&str]| {
            let layers = settings
                .iter()
                .try_fold(Layers::default(), |layers, one| layers.assignment(one));
            let settings = layers.and_then(Layers::resolve).expect("settings");
            edges(&workflow, &settings).expect("an edge").remove(0)
        };
        let graph = "stage.method=graph";
        assert_eq!(with(&[graph]).policy, Some(Policy::Every(3)));
        // Of all streams: the edge is about this one.
        let all = with(&[graph, "stage.policy=latest"]);
        assert_eq!(all.policy, Some(Policy::Every(3)));
        for name in ["ab", "input"] {
            let one = with(&[graph, &format!("stage.{name}.policy=latest")]);
            assert_eq!(
                (one.policy, one.limits.map(|limits| limits.steps)),
                (None, Some(3))
            );
        }
        let limits = with(&[graph, "stage.ab.limit_steps=5 steps"]).limits;
        assert_eq!(
            limits.map(|limits| (limits.steps, limits.bytes)),
            Some((2, 1 << 20))
        );
    }

    #[test]
    fn mistakes_name_their_line_and_the_nearest_word() {
        for (rest, said) in [
            (
                "redistribute = 'blok'",
                "graph.toml:14: `blok` is no redistribution; did you mean `block`?",
            ),
            (
                "rate = 'sometimes'",
                "graph.toml:14: `sometimes` is not one of block",
            ),
            ("limit_steps = '3'", "graph.toml:14"),
            (
                "operators = ['mine:x', 'strid 2']",
                "did you mean `stride`?",
            ),
            (
                "operators = [{ apply = 'mean 2', variables = ['uu'] }]\nvariables = [{ name = 'u', dtype = 'f64' }]",
                "graph.toml:14: `uu` is no variable that the edge promises; did you mean `u`?",
            ),
            (
                "variables = [{ name = 'u', dtype = 'f65' }]",
                "did you mean `f64`?",
            ),
            (
                "variables = [{ name = 'u', dtype = 'f64', cut = 'row' }]",
                "did you mean `rows`?",
            ),
        ] {
            let error = read("graph", &edge("a", "b", rest)).expect_err(rest);
            assert!(error.contains(said), "{rest}: {error}");
        }
    }

    #[test]
    fn a_cycle_needs_tokens() {
        let three = |tokens: &str| {
            [
                edge("a", "b", ""),
                edge("b", "c", ""),
                edge("c", "a", tokens),
            ]
            .concat()
        };
        assert_eq!(
            read("graph", &three("tokens = 1")).map(|edges| edges.len()),
            Ok(3)
        );
        assert!(read("stream", &three("")).is_ok());
        let error = read("graph", &three("")).expect_err("a cycle");
        assert!(error.contains("a -> b -> c -> a"), "{error}");
        assert!(error.contains("graph.toml:21"), "{error}");
    }

    #[test]
    fn what_only_a_graph_does_is_refused_elsewhere() {
        assert!(read("stream", &edge("a", "b", "rate = 'latest'")).is_ok());
        for rest in [
            "as = 'x'",
            "redistribute = 'block'",
            "operators = ['mean 2']",
            "tokens = 1",
        ] {
            let error = read("stream", &edge("a", "b", rest)).expect_err(rest);
            let word = rest.split(' ').next().unwrap_or_default();
            assert!(
                error.contains(&format!("graph.toml:14: `{word}` is for streams")),
                "{error}"
            );
            assert!(read("graph", &edge("a", "b", rest)).is_ok());
        }
    }
}
