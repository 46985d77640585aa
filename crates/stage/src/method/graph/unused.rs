//! Finds, when a job is over, the edges that no program used, and the subscriptions to variables
//! that no step had.

use super::{Edge, group_of, stream_of};
use crate::method::{Configuration, Method};
use crate::protocol::{History, instead};

/// Returns a sentence for each of them.
pub(crate) fn unused(configuration: &Configuration, history: &History) -> Vec<String> {
    let mut sentences: Vec<String> = Vec::new();
    for edge in &configuration.edges {
        let method = configuration.stream(&edge.stream).method;
        let sentence = match method {
            // Nobody knows who opens files.
            Method::File => None,
            _ => not_written(edge, method, history).or_else(|| not_read(edge, method, history)),
        };
        sentences.extend(sentence.filter(|sentence| !sentences.contains(sentence)));
    }
    for (stream, variable, step, there) in history.missing() {
        let there: Vec<&str> = there.iter().map(String::as_str).collect();
        let there = match there.is_empty() {
            true => "that step has no variable".to_owned(),
            false => instead(variable, &there, &format!("step {step} has these")),
        };
        sentences.push(format!(
            "a program subscribed to {variable} of the stream {stream}, and no step from then on had a variable of that name: {there}"
        ));
    }
    sentences
}

fn not_written(edge: &Edge, method: Method, history: &History) -> Option<String> {
    let Edge { from, stream, .. } = edge;
    let own = format!("{from}/");
    let there: Vec<&str> = match method {
        Method::Graph => {
            let of_program = |name: &str| name.starts_with(&own);
            let there = history.written_instead(&stream_of(edge), of_program)?;
            there.into_iter().map(|name| &name[own.len()..]).collect()
        }
        _ => history.written_instead(stream, |_| true)?,
    };
    let there = listed(stream, &there, "written");
    Some(format!(
        "an edge leads from the stream {stream} of {from}, which nobody opened for writing: {there}"
    ))
}

fn not_read(edge: &Edge, method: Method, history: &History) -> Option<String> {
    let Edge { to, name, .. } = edge;
    // Its program may have needed no more than the tokens.
    if edge.tokens > 0 {
        return None;
    }
    let there: Vec<&str> = match method {
        // The group has the name that its program gives the stream.
        Method::Graph => history
            .read_instead(&stream_of(edge), &group_of(edge))
            .map(|_| Vec::new())?,
        _ => history.read_instead(name, to)?,
    };
    let there = listed(name, &there, "read");
    Some(format!(
        "an edge leads to the stream {name} of {to}, which nobody opened for reading as {to}: {there}"
    ))
}

fn listed(name: &str, there: &[&str], done: &str) -> String {
    match there.is_empty() {
        true => "check the names of the edge".to_owned(),
        false => instead(name, there, &format!("these were {done}")),
    }
}
