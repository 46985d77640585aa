//! Finds methods of streams that lack what they need, where no [[edge]] says which streams there
//! are.

use super::{Finding, State};
use crate::builtin::is_server;
use samite::config::Resolved;
use samite::stage::Method;
use samite::stage::method::graph::Edge;
use samite_launch::Program;

/// Checks the methods of streams without edges. A method that only the user's own file sets is for
/// all jobs of the user, also for those without streams, so it is only a note.
pub(super) fn findings(programs: &[Program], edges: &[Edge], settings: &Resolved) -> Vec<Finding> {
    if !edges.is_empty() {
        return Vec::new();
    }
    let has_servers = programs.iter().any(is_server);
    let lacks = |method: Method| match method {
        Method::Graph => true,
        Method::Server => !has_servers,
        _ => false,
    };
    let streams = settings.config.stage.configuration();
    let own = streams.streams.iter();
    let own = own.map(|(name, own)| (format!("stage.{name}.method"), own.method));
    let all = [("stage.method".to_owned(), streams.all.method)];
    // A stream without a method of its own has that of all streams.
    let own = own.filter(|(setting, _)| settings.is_explicit(setting));
    let lacking = all.into_iter().chain(own);
    let lacking = lacking.filter(|(_, method)| lacks(*method));
    let finding = |(setting, method): (String, Method)| {
        let state = match settings.is_explicit(&setting) {
            true => State::Bad,
            false => State::Note,
        };
        match method {
            Method::Graph => {
                let found = format!("{setting} is `graph`, but the job has no [[edge]]");
                let remedy =
                    "add an [[edge]] for each stream that a program reads, or use another method";
                Finding::new("edges", state, found, remedy)
            }
            _ => {
                let found = format!("{setting} is `server`, but no program is a staging server");
                let remedy = "add a program with the command `stage-server` to the workflow";
                Finding::new("servers", state, found, remedy)
            }
        }
    };
    lacking.map(finding).collect()
}
