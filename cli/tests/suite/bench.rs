//! `samite bench mobile` and `network`: each kind of command runs in each of its ways, and verifies
//! its results.

use crate::domain::output;
use serde_json::Value;

/// Runs one case; returns its only row.
fn row(bench: &str, case: &str) -> Value {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let json = folder.path().join("bench.json").display().to_string();
    let words = ["bench", bench, "--quick", "--repeats", "1"];
    let more = ["--only", case, "--json", &json];
    let shown = output(&[&words[..], &more].concat()).expect("the bench succeeds");
    let text = std::fs::read(&json).expect("figures");
    let figures: Value = serde_json::from_slice(&text).expect("JSON");
    let rows = figures["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 1, "{shown}");
    assert_eq!(rows[0]["case"], case);
    let failures = figures["failures"].as_array().map_or(0, Vec::len);
    assert_eq!(failures, 0, "{shown}");
    rows[0].clone()
}

macro_rules! cases {
    ($($name:ident: $case:literal, $peers:expr;)*) => {$(
        #[test]
        fn $name() {
            let row = row("mobile", $case);
            assert!(row["ours"].is_number(), "{row}");
            let peers: &[&str] = &$peers;
            for peer in peers {
                assert!(row["peers"][peer].is_number(), "{peer}: {row}");
            }
        }
    )*};
}

cases! {
    calls: "tsi/latency", ["function"];
    calls_without_replies: "tsi/rate", ["function"];
    calls_above_functions: "call/above-function", [];
    a_first_call: "first-call/wasm", [];
    a_first_call_after_a_prefetch: "first-call/prefetched", ["function"];
    a_first_call_of_new_processes: "first-call-new-process/wasm", [];
    a_first_call_of_bitcode_of_new_processes: "first-call-new-process/bitcode", [];
    a_first_call_of_bitcode: "first-call/bitcode", [];
    a_sum: "compute/wasm/64MiB", ["function"];
    a_sum_in_bitcode: "compute/bitcode/64MiB", ["function"];
    a_filter: "stage/filter/64MiB", ["gets"];
    a_filter_beside_a_function: "stage/filter-function/64MiB", ["function"];
    words_in_mapped_memory: "gather/mapped/1024", ["function", "gets"];
    a_list_in_mapped_memory: "list/mapped/64", ["function", "gets"];
    a_tree_in_mapped_memory: "btree/mapped/65536", ["function", "gets"];
    a_graph_in_mapped_memory: "bfs/mapped/16384", ["function", "gets"];
    words_over_a_link: "gather/4/1us/1024", ["function", "gets"];
    a_list_over_a_link: "list/4/1us/64", ["function", "gets"];
    a_tree_over_a_link: "btree/4/1us/65536", ["function", "gets"];
    a_graph_over_a_link: "bfs/4/1us/16384", ["function", "gets"];
    a_chase_in_mapped_memory: "chase/mapped/64", ["function", "gets"];
    a_chase_over_a_link: "chase/2/5us/64", ["gets"];
    chases_at_once_over_a_link: "chases/4/5us/64", ["gets"];
    a_chase_beside_a_function: "chase-function/2/5us/64", ["function"];
}

/// A call of code that the target has carries its name and a head.
#[test]
fn bytes_of_a_call() {
    let row = row("mobile", "call/bytes-on-the-wire");
    assert_eq!(
        (&row["ours"], &row["unit"]),
        (&Value::from(32.0), &Value::from("B"))
    );
}

/// The ratio that delays alone would give: 128 of them, against 2 and half of 63.
#[test]
fn the_model_of_a_chase() {
    let row = row("mobile", "chase/2/1us/64");
    assert_eq!(row["model"], 3.821, "{row}");
}

/// Between two hosts, beside `ucx_perftest`.
#[test]
fn messages_over_ucx() {
    let name = samite_testkit::full_name("suite::bench", "messages_over_ucx");
    let hint = "install libucx0: ci/packages.txt";
    if samite_testkit::require(&name, samite::has_ucx(), hint) {
        let row = row("network", "ucx/latency/8B");
        assert!(row["ours"].is_number(), "{row}");
        assert!(row["peers"]["ucx"].is_number(), "{row}");
    }
}
