//! The edges of a workflow, as units get them: combined with the settings of this run, and checked
//! before a unit starts.

use samite::config::{Bytes, Resolved, Steps};
use samite::stage::method::graph::{Edge, check_cycles, check_operators};
use samite::stage::{Configuration, Method, Settings};
use samite_launch::{Error, Workflow};

/// Returns the edges of a workflow whose streams have these settings. Settings of a stream on the
/// command line or in the environment override those of its edge.
///
/// # Errors
/// [`Error::Workflow`], with the line of the invalid edge.
pub(crate) fn edges(workflow: &Workflow, settings: &Resolved) -> Result<Vec<Edge>, Error> {
    let streams = settings.config.stage.configuration();
    let mut edges: Vec<(usize, Edge)> = workflow.edges()?;
    for (at, edge) in &mut edges {
        let at = *at;
        check_operators(edge).map_err(|(operator, error)| {
            workflow.edge_error(at, &format!("operators.{operator}"), error)
        })?;
        check_method(workflow, &streams, at, edge)?;
        settle(edge, settings, &streams);
    }
    // Other methods have no tokens, and the order of waits is up to the programs.
    let is_graph = |edge: &Edge| streams.stream(&edge.stream).method == Method::Graph;
    let graph = edges.iter().filter(|(_, edge)| is_graph(edge)).cloned();
    let (numbers, graph): (Vec<usize>, Vec<Edge>) = graph.unzip();
    check_cycles(&graph).map_err(|(at, error)| workflow.edge_error(numbers[at], "from", error))?;
    Ok(edges.into_iter().map(|(_, edge)| edge).collect())
}

/// Rejects keys of the method `graph` for a stream with another method.
fn check_method(
    workflow: &Workflow,
    streams: &Configuration,
    at: usize,
    edge: &Edge,
) -> Result<(), Error> {
    // Reader and writer find the settings by their own names of the stream.
    let names = [&edge.stream, &edge.name];
    let all = names.map(|name| streams.stream(name).method == Method::Graph);
    if all[0] != all[1] {
        let message = format!(
            "the stream is `{}` for {} and `{}` for {}, and only one of the two has the method \
             `graph`: give both the same",
            edge.stream, edge.from, edge.name, edge.to
        );
        return Err(workflow.edge_error(at, "as", message));
    }
    if let (Some(word), false) = (edge.needs_graph(), all[0]) {
        let message = format!(
            "`{word}` is for streams with the method `graph`, and `{}` has another one: set \
             `stage.method = \"graph\"` in [config], or leave it out",
            edge.stream
        );
        return Err(workflow.edge_error(at, word, message));
    }
    Ok(())
}

/// Settles rate and limits, each separately: the value for this run, else that of the edge. If the
/// edge sets only one of the limits, the other one is that of the stream's settings.
fn settle(edge: &mut Edge, settings: &Resolved, streams: &Configuration) {
    // The command line or the environment may set a value under either name of the stream. It then
    // applies to both ends of the edge. The reader's own name has precedence.
    let names = [edge.name.clone(), edge.stream.clone()];
    let of_this_run = |key: &str| -> Option<&Settings> {
        let is_said = |name: &&String| settings.is_of_this_run(&format!("stage.{name}.{key}"));
        Some(streams.stream(names.iter().find(is_said)?))
    };
    if let Some(said) = of_this_run("policy") {
        edge.policy = Some(said.policy);
    }
    if let Some(said) = of_this_run("limit_steps") {
        edge.limit_steps = said.steps.map(Steps);
    }
    if let Some(said) = of_this_run("limit_bytes") {
        edge.limit_bytes = said.bytes.map(Bytes::new);
    }
    if edge.limits().is_some() {
        let own = streams.stream(&edge.name);
        edge.limit_steps = edge.limit_steps.or(own.steps.map(Steps));
        edge.limit_bytes = edge.limit_bytes.or(own.bytes.map(Bytes::new));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite::config::Layers;
    use samite::stage::method::graph::{Cut, Extent, Redistribution};
    use samite::stage::protocol::Policy;
    use samite_testkit::fuzz;
    use std::path::Path;

    /// Returns the edges of a workflow with three programs, whose streams have this method.
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
            "as = 'input'\nredistribute = 'round'\nrate = 'every 3'\nlimit_bytes = '1 MiB'\noperators = ['mean 2', { apply = 'as f32', variables = ['u'] }]\ntokens = 1\nvariables = [{ name = 'u', dtype = 'f32', shape = '4,4', cut = 'columns' }, { name = 'v', dtype = 'u8', block = 3, every = 2 }, { name = 'w', dtype = 'i16' }]",
        );
        let edge = read("graph", &text).expect("well-formed").remove(0);
        assert_eq!(edge.to_string(), "a/ab -> b/input");
        assert_eq!(edge.redistribute, Redistribution::Round);
        assert_eq!(edge.policy, Some(Policy::Every(3)));
        let limits = edge.limits().expect("limits");
        assert_eq!((limits.steps, limits.bytes), (2, 1 << 20));
        assert_eq!((edge.operators.len(), edge.tokens), (2, 1));
        assert!(edge.operators[0].is_for("v") && !edge.operators[1].is_for("v"));
        assert_eq!(edge.variables[0].cut, Some(Cut::Columns));
        let shape = edge.variables[0].extent.as_ref();
        assert!(matches!(shape, Some(Extent::Shape(shape)) if shape[..] == [4, 4]));
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
        // A setting of all streams does not override the edge, which is specific.
        let all = with(&[graph, "stage.policy=latest"]);
        assert_eq!(all.policy, Some(Policy::Every(3)));
        let limits = |edge: &Edge| edge.limits().map(|limits| (limits.steps, limits.bytes));
        for name in ["ab", "input"] {
            let one = with(&[graph, &format!("stage.{name}.policy=latest")]);
            assert_eq!(
                (one.policy, limits(&one)),
                (Some(Policy::Latest), Some((3, 1 << 20)))
            );
            let one = with(&[graph, &format!("stage.{name}.limit_steps=5 steps")]);
            assert_eq!(limits(&one), Some((5, 1 << 20)));
            let one = with(&[graph, &format!("stage.{name}.limit_bytes=7 KiB")]);
            assert_eq!(limits(&one), Some((3, 7 << 10)));
        }
        let both = with(&[
            graph,
            "stage.ab.limit_steps=4 steps",
            "stage.input.limit_steps=5 steps",
        ]);
        assert_eq!(limits(&both), Some((5, 1 << 20)), "of the reader");
        // Values that an edge does not set come from the settings.
        let of_file = "[config.stage]\nlimit_steps = '7 steps'\n[config.stage.input]\nlimit_bytes = '1 KiB'\n";
        for (words, wanted) in [
            ("limit_bytes = '1 MiB'", Some((7, 1 << 20))),
            ("limit_steps = '3 steps'", Some((3, 1 << 10))),
            ("", None),
        ] {
            let rest = format!("as = 'input'\n{words}");
            let text = programs.concat() + &edge("a", "b", &rest) + of_file;
            let path = Path::new("graph.toml");
            let layers = Layers::default().workflow(path, &text);
            let layers = layers.and_then(|layers| layers.assignment(graph));
            let settings = layers.and_then(Layers::resolve).expect("settings");
            let workflow = Workflow::parse(path, text).expect("well-formed");
            let edge = edges(&workflow, &settings).expect("an edge").remove(0);
            assert_eq!(limits(&edge), wanted, "{words}");
        }
    }

    #[test]
    fn mistakes_name_their_line_and_the_nearest_word() {
        for (rest, said) in [
            (
                "redistribute = 'blok'",
                "graph.toml:14: `redistribute` cannot be `blok`; did you mean `block`?",
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
                "graph.toml:14: there is no promised variable `uu`; did you mean `u`?",
            ),
            (
                "variables = [{ name = 'u', dtype = 'f65' }]",
                "did you mean `f64`?",
            ),
            (
                "variables = [{ name = 'u', dtype = 'f64', cut = 'row' }]",
                "graph.toml:14: `variables.0.cut` cannot be `row`; did you mean `rows`?",
            ),
            (
                "rates = 'latest'",
                "[[edge]] has no key `rates`; did you mean `rate`?",
            ),
            (
                "variables = [{ name = 'u', dtype = 'f64', blok = 3 }]",
                "did you mean `block`?",
            ),
            (
                "variables = [{ name = 'u', dtype = 'f64', block = 3, shape = 3 }]",
                "graph.toml:14: say `block`, of each unit, or `shape`, of the whole: not both",
            ),
            (
                "variables = [{ name = 'u', dtype = 'f64', every = 0 }]",
                "graph.toml:14: `every` must be 1 or more",
            ),
            (
                "variables = [{ dtype = 'f64' }]",
                "graph.toml:14: missing field `name`",
            ),
            (
                "operators = [{ apply = 'mean 2', variable = ['u'] }]",
                "did you mean `variables`?",
            ),
            (
                "operators = ['mean 2',\n{ variables = ['u'] }]",
                "graph.toml:15: missing field `apply`",
            ),
            (
                "operators = ['mean 2',\n3]",
                "graph.toml:15: `operators.1`: invalid type: found signed int `3`, expected an op",
            ),
            (
                "operators = [{ apply = 'mean 2', variables = [] }]",
                "graph.toml:14: say which `variables` the operator is for",
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

    #[test]
    fn a_promise_has_dimensions() {
        for extent in ["block = []", "shape = []"] {
            let rest = format!("variables = [{{ name = 'u', dtype = 'u8', {extent} }}]");
            let error = read("graph", &edge("a", "b", &rest)).expect_err("it has none");
            let why = "graph.toml:14: `block` and `shape` have at least one dimension";
            assert_eq!(error, why);
        }
    }

    /// Slightly changed edges give an edge, or an error in one sentence.
    #[test]
    fn no_words_break_the_edges() {
        const WORDS: [(&str, &[&str]); 6] = [
            ("redistribute", &["block", "rows", "round", "count"]),
            ("rate", &["every 3", "latest", "spill", "drop_oldest"]),
            ("limit_steps", &["3 steps", "1 step"]),
            ("limit_bytes", &["1 MiB", "17 KiB", "0"]),
            ("as", &["input", "ab"]),
            ("operators", &["mean 2", "as f32", "stride 3", "mine:x"]),
        ];
        const CUTS: [&str; 4] = ["rows", "columns", "blocks 2x2", ""];
        let name = "edges::tests::no_words_break_the_edges";
        fuzz::rounds(name, 1000, |_, random| {
            let mut word = |of: &[&str]| {
                let mut word = random.choice(of).copied().unwrap_or("").as_bytes().to_vec();
                match random.u32(..4) {
                    0 => fuzz::mutate(random, &mut word),
                    1 => {
                        let number = fuzz::word(random).to_string().into_bytes();
                        let at = word.iter().position(u8::is_ascii_digit);
                        word.splice(at.unwrap_or(0).., number);
                    }
                    _ => {}
                }
                // Usually as a TOML string.
                format!("{:?}", String::from_utf8_lossy(&word))
            };
            let mut rest = String::new();
            for (key, words) in WORDS {
                let value = match key {
                    "operators" => format!("[{}]", word(words)),
                    _ => word(words),
                };
                rest += &format!("{key} = {value}\n");
            }
            let shape = word(&["4,4", "7"]);
            let (dtype, cut) = (word(&["f64", "i8"]), word(&CUTS));
            rest += &format!(
                "tokens = 1\nvariables = [{{ name = 'u', dtype = {dtype}, shape = {shape}, cut = {cut} }}]"
            );
            let programs =
                ["a", "b"].map(|name| format!("[[program]]\nname = '{name}'\ncommand = 'sh'\n"));
            let text = programs.concat() + &edge("a", "b", &rest);
            let path = Path::new("graph.toml");
            let Ok(workflow) = Workflow::parse(path, text.clone()) else {
                return;
            };
            let layers = Layers::default().assignment("stage.method=graph");
            let settings = layers.and_then(Layers::resolve).expect("a method");
            if let Err(error) = edges(&workflow, &settings) {
                assert!(error.to_string().contains("graph.toml:"), "{error}\n{text}");
            }
        });
    }
}
