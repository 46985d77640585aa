//! The plan of a workflow as text.

use super::plan::{Plan, ProgramPlan};
use super::stream::{Array, StreamPlan};
use crate::screen::{size, table};

/// Returns the plan as text, or nothing if the workflow has no edges.
pub(super) fn text(plan: &Plan) -> String {
    if plan.streams.is_empty() {
        return "The file has no [[edge]], so nothing is known of what its programs hand each other.\n".to_owned();
    }
    let mut text = String::new();
    for stream in &plan.streams {
        text += &of_stream(stream);
    }
    let mut rows = table(&[
        "each unit of",
        "units",
        "puts",
        "gets",
        "keeps",
        "copies, at most",
        "holds, at most",
        "open files",
    ]);
    rows.add_rows(plan.programs.iter().map(of_program));
    text += &format!("per step, and memory\n{rows}\n");
    text += &format!(
        "open files: launcher {}, agent {}\n",
        plan.launcher_files, plan.agent_files
    );
    text += &format!(
        "shared memory: streams need {} of {} for blocks; the budget is {}\n",
        size(plan.memory),
        size(plan.capacity),
        size(plan.budget)
    );
    text
}

fn of_stream(stream: &StreamPlan) -> String {
    let readers = stream.readers.iter();
    let readers: Vec<String> = readers
        .map(|reader| format!("{} x {}", reader.units, reader.program))
        .collect();
    let mut text = format!(
        "stream {} ({}): {} x {} -> {}\n",
        stream.name,
        stream.method,
        stream.writers,
        stream.writer,
        readers.join(", ")
    );
    for array in &stream.variables {
        text += &format!("  {}\n", of_array(array));
    }
    text += &format!(
        "  {} bytes per step ({}); the largest part of a writer has {}\n",
        stream.step_bytes,
        size(stream.step_bytes),
        size(stream.most_put)
    );
    text += &format!(
        "  at most {} steps in memory: {}\n",
        stream.steps_in_memory,
        size(stream.memory)
    );
    let copies = &stream.copies;
    text += &format!(
        "  copies of a byte: put {}, alloc {}; get {}, view of a box inside one block {}\n",
        copies.put, copies.alloc, copies.get, copies.view
    );
    text += &format!("  index: {} in each reader\n", size(stream.index_bytes));
    if let Some(servers) = &stream.servers {
        text += &format!(
            "  {} servers, {} copies: {} of a step at each, the fullest {:.2} times that; {} pieces\n  \
             a writer talks to {} of them, a reader to {}, a server to {} writers and readers\n",
            servers.servers,
            servers.replicas,
            size(servers.mean),
            servers.max_over_mean,
            servers.pieces,
            servers.per_writer,
            servers.per_reader,
            servers.per_server
        );
    }
    text + "\n"
}

fn of_array(array: &Array) -> String {
    let every = match array.every {
        1 => String::new(),
        every => format!(", every {every} steps"),
    };
    match array.shape.is_empty() {
        true => format!(
            "{}: {}, of a shape that is not promised{every}",
            array.name, array.dtype
        ),
        false => format!(
            "{}: {} {:?}, {}{every}",
            array.name,
            array.dtype,
            array.shape,
            size(array.bytes)
        ),
    }
}

fn of_program(program: &ProgramPlan) -> [String; 8] {
    [
        program.name.clone(),
        program.units.to_string(),
        size(program.sends),
        size(program.receives),
        size(program.keeps),
        size(program.copies),
        size(program.holds),
        program.files.to_string(),
    ]
}
