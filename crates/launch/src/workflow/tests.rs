//! Tests of workflow files.

use super::*;
use crate::Cpus;

const SAMPLE: &str = r#"
[job]
name = "sample"

[parameters]
size = { default = 64, help = "rows" }
units = 2

[[program]]
name = "solver"
command = "builtin-solver"
args = ["--size", "{size}"]
units = "{units}"
env = { THREADS = "{units}" }
cpus = ["0", "1"]

[[program]]
name = "viewer"
command = "sh"
prefix = false

[config]
fabric.eager_max = "8 KiB"
"#;

fn parse(text: &str) -> Result<Workflow, Error> {
    Workflow::parse(Path::new("sample.toml"), text.to_owned())
}

fn programs(workflow: &Workflow) -> Result<Vec<Program>, Error> {
    workflow.programs(&Builtins {
        executable: "/bin/true".into(),
        names: &["builtin-solver"],
    })
}

fn message(text: &str) -> String {
    match parse(text).and_then(|workflow| programs(&workflow)) {
        Ok(programs) => panic!("{programs:?} should be refused"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_workflow_becomes_programs() {
    let workflow = parse(SAMPLE).expect("well-formed");
    assert_eq!(workflow.job(), "sample");
    let programs = programs(&workflow).expect("all there");
    let solver = &programs[0];
    assert_eq!(solver.command, Path::new("/bin/true"));
    assert_eq!(
        solver.setup.args,
        ["unit", "builtin-solver", "--size", "64"]
    );
    assert_eq!((solver.units, solver.prefix), (2, true));
    assert_eq!(solver.setup.env["THREADS"], "2");
    assert_eq!(solver.cpus, Cpus::PerUnit(vec!["0".into(), "1".into()]));
    assert_eq!((programs[1].units, programs[1].prefix), (1, false));
}

#[test]
fn parameters_and_keys_of_programs_can_be_set() {
    let mut workflow = parse(SAMPLE).expect("well-formed");
    for setting in [
        "size=8",
        "program.solver.units=3",
        "program.viewer.env.A=b",
        "program.solver.cpus=0",
    ] {
        workflow.set(setting).expect(setting);
    }
    let programs = programs(&workflow).expect("all there");
    assert_eq!(programs[0].setup.args[3], "8");
    assert_eq!(programs[0].units, 3);
    assert_eq!(programs[1].setup.env["A"], "b");
    assert_eq!(programs[0].cpus, Cpus::Same("0".into()));
}

#[test]
fn settings_that_do_not_fit_name_the_nearest() {
    let mut workflow = parse(SAMPLE).expect("well-formed");
    for (setting, expected) in [
        ("sise=8", "did you mean `size`"),
        ("program.solvr.units=3", "did you mean `solver`"),
        ("program.solver.unit=3", "did you mean `units`"),
        ("size", "NAME=VALUE"),
    ] {
        let error = workflow.set(setting).expect_err(setting).to_string();
        assert!(error.contains(expected), "{setting}: {error}");
    }
}

#[test]
fn misspelt_keys_name_their_line_and_the_nearest_key() {
    let program = "[[program]]\nname = \"a\"\ncommand = \"sh\"\n";
    for (text, expected) in [
        (
            format!("{program}unit = 2\n"),
            "sample.toml:4: [[program]] has no key `unit`; did you mean `units`?",
        ),
        (
            format!("[jobs]\n{program}"),
            "sample.toml:1: a workflow has no key `jobs`; did you mean `job`?",
        ),
        (
            format!("[job]\nnam = \"a\"\n{program}"),
            "sample.toml:2: [job] has no key `nam`; did you mean `name`?",
        ),
        (
            format!("[parameters]\nsize = {{ defualt = 1 }}\n{program}"),
            "sample.toml:2: a parameter has no key `defualt`; did you mean `default`?",
        ),
    ] {
        assert_eq!(message(&text), expected);
    }
}

/// Parameters without a default, types, and conditions.
#[test]
fn parameters_are_checked_before_anything_starts() {
    let text = r#"
[parameters]
input = { required = true, help = "a file" }
size = { default = 8, min = 1 }
plot = ""

[[program]]
name = "a"
command = "sh"
args = ["{input}", 3, { when = "{plot}", args = ["--plot", "{plot}"] }, { when = "{size} == 9", args = ["nine"] }]
"#;
    let mut workflow = parse(text).expect("well-formed");
    let error = programs(&workflow).expect_err("no input").to_string();
    let sentence =
        "sample.toml:3: the parameter `input` (a file) has no default: give it by --input VALUE";
    assert_eq!(error, sentence);
    workflow.set("input=x").expect("a text");
    let error = workflow.set("size=0").expect_err("too small").to_string();
    assert_eq!(error, "--set size=0: `size` is 0, but has to be at least 1");
    let args = |workflow: &Workflow| programs(workflow).expect("all there")[0].setup.args.clone();
    assert_eq!(args(&workflow), ["x", "3"]);
    workflow.set("plot=p.png").expect("a text");
    workflow.set("size=9").expect("large enough");
    assert_eq!(args(&workflow), ["x", "3", "--plot", "p.png", "nine"]);
    let error = message(&text.replace("when", "wehn"));
    assert!(error.contains("did you mean `when`?"), "{error}");
    let error = message(&text.replace("min = 1", "type = 'intger'"));
    assert!(
        error.contains("sample.toml:4: `intger` is not a type; did you mean `integer`?"),
        "{error}"
    );
}

#[test]
fn units_have_places_of_their_own() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    std::fs::write(folder.path().join("in.txt"), "").expect("the folder is there");
    let text = r#"
[job]
timeout = "{limit}"
[parameters]
limit = "2 h"
[[program]]
name = "a"
command = "sh"
units = 2
instances = 2
args = ["{rank}", "{instance}", "{folder}/x", "{{rank}}"]
cwd = "run/{instance}"
stdin = "in.txt"
stdout = "out-{rank}"
grace = "1 min"
stop_signal = "SIGINT"
"#;
    let path = folder.path().join("w.toml");
    let parse = |text: String| Workflow::parse(&path, text).expect("well-formed");
    let workflow = parse(text.to_owned());
    let limit = workflow.timeout().expect("a time");
    assert_eq!(limit, Some(std::time::Duration::from_secs(7200)));
    let all = programs(&workflow).expect("all there");
    let names: Vec<&str> = all.iter().map(|program| &*program.name).collect();
    assert_eq!(names, ["a-0", "a-1"]);
    let setup = all[1].setup_of(1);
    let x = folder.path().join("x").display().to_string();
    let args: Vec<String> = setup
        .args
        .iter()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    assert_eq!(args[..2], ["1", "1"]);
    assert_eq!((Path::new(&args[2]), &*args[3]), (Path::new(&x), "{rank}"));
    assert_eq!(setup.cwd, Some(folder.path().join("run/1")));
    assert_eq!(setup.stdout, Some(folder.path().join("out-1")));
    assert_eq!(all[0].grace, Some(std::time::Duration::from_secs(60)));
    assert_eq!(all[0].stop_signal, rustix::process::Signal::INT);
    for (from, to, said) in [
        ("in.txt", "no.txt", "w.toml:13: there is no file "),
        (
            "SIGINT",
            "SIGKILL",
            "w.toml:16: `SIGKILL` is not a signal that asks to end",
        ),
        ("1 min", "1", "w.toml:15: `1` is not a time"),
        ("instances = 2", "instances = 'x'", "`a` has `x` instances"),
    ] {
        let error = programs(&parse(text.replace(from, to)))
            .expect_err(to)
            .to_string();
        assert!(error.contains(said), "{error}");
    }
    // An earlier program may write the file.
    let later = text.replace("in.txt", "no.txt")
        + "after = ['b']\n[[program]]\nname = 'b'\ncommand = 'sh'\n";
    let all = programs(&parse(later)).expect("it is there by then");
    assert_eq!(all[0].setup.stdin, Some(folder.path().join("no.txt")));
    let error = message(&text.replace("limit", "rank"));
    assert!(
        error.contains("`{rank}` has a value of its own in each unit"),
        "{error}"
    );
}

#[test]
fn programs_wait_for_those_that_are_there() {
    let text = "[[program]]\nname = 'a'\ncommand = 'sh'\ninstances = 2\nready = 'up'\n\
                [[program]]\nname = 'b'\ncommand = 'sh'\nafter = ['a']\nrestart = 2\noptional = true\n";
    let all = programs(&parse(text).expect("well-formed")).expect("all there");
    assert_eq!(all[2].after, ["a-0", "a-1"]);
    assert_eq!((all[0].ready.as_deref(), all[2].restart), (Some("up"), 2));
    assert!(all[2].optional && !all[0].optional);
    let one = programs(&parse(&text.replace("['a']", "['a-1']")).expect("well-formed"));
    assert_eq!(one.expect("all there")[2].after, ["a-1"]);
    let error = message(&text.replace("['a']", "['aa']"));
    assert!(
        error.contains("sample.toml:9: there is no program `aa`; did you mean `a`?"),
        "{error}"
    );
    let circle = text.replace("ready = 'up'", "after = ['b']");
    let error = message(&circle.replace("['a']", "['a-1']"));
    assert!(error.contains("a and b would wait"), "{error}");
    let error = message(&circle);
    assert!(
        error.contains("a and b would wait for each other"),
        "{error}"
    );
}

#[test]
fn a_sweep_has_a_run_for_each_combination() {
    let text = "[parameters]\nn = 1\nm = { default = 'a', choices = ['a', 'b'] }\n\
                [sweep]\nn = [1, 2]\nm = ['a', 'b']\n\
                [[program]]\nname = 'p'\ncommand = 'sh'\nargs = ['{n}{m}']\nstdout = 'out'\n";
    let runs = |text: &str| parse(text).and_then(|workflow| workflow.runs());
    let all = runs(text).expect("four runs");
    let labels: Vec<&str> = all.iter().map(|run| &*run.label).collect();
    assert_eq!(
        labels,
        [
            "m = a, n = 1",
            "m = a, n = 2",
            "m = b, n = 1",
            "m = b, n = 2"
        ]
    );
    let program = programs(&all[3].workflow).expect("all there").remove(0);
    let folder = all[3].folder.clone().expect("it has one");
    assert!(
        folder.ends_with("sweep/b-2") && folder.is_absolute(),
        "{folder:?}"
    );
    assert_eq!(program.setup.args, ["2b"]);
    assert_eq!(program.setup.stdout, Some(folder.join("out")));
    assert_eq!(program.setup.cwd, Some(folder));
    // An earlier program writes the standard input into the folder of the run. Other files are
    // those beside the workflow.
    let later = "[[program]]\nname = 'q'\ncommand = 'sh'\nafter = ['p']\nstdin = 'out'\n\
                 [[program]]\nname = 'r'\ncommand = 'sh'\nafter = ['p']\nstdin = '{folder}/out'\n";
    let run = runs(&(text.to_owned() + later))
        .expect("four runs")
        .remove(3);
    let inputs = programs(&run.workflow).expect("all there").into_iter();
    let inputs: Vec<Option<PathBuf>> = inputs.map(|program| program.setup.stdin).collect();
    let own = run.folder.expect("it has one").join("out");
    let beside = run.workflow.folder().join("out");
    assert_eq!(inputs, [None, Some(own), Some(beside)]);
    // Too many runs are refused before they are made.
    let many: Vec<String> = (0..101).map(|at| at.to_string()).collect();
    let many = many.join(", ");
    let axis = |name: char| format!("{name} = [{many}]\n");
    let axes: String = ('c'..='l').map(axis).collect();
    let declared: String = ('c'..='l').map(|name| format!("{name} = 1\n")).collect();
    let text_of_many =
        format!("[parameters]\n{declared}[sweep]\n{axes}[[program]]\nname = 'p'\ncommand = 'sh'\n");
    let error = runs(&text_of_many).expect_err("too many").to_string();
    assert!(error.contains("more than 10000 combinations"), "{error}");
    // What the run sets is not swept.
    let mut workflow = parse(text).expect("well-formed");
    workflow.set("n=7").expect("a number");
    let some = workflow.runs().expect("two runs");
    assert_eq!((some.len(), &*some[1].label), (2, "m = b, n = 7"));
    assert!(
        some[1]
            .folder
            .as_ref()
            .is_some_and(|folder| folder.ends_with("sweep/b-7"))
    );
    for (from, to, said) in [
        (
            "n = [1, 2]",
            "k = [1]",
            "sample.toml:5: [sweep]: there is no parameter `k`",
        ),
        (
            "['a', 'b']\n[[",
            "['a', 'c']\n[[",
            "sample.toml:6: `m` cannot be `c`",
        ),
        (
            "n = [1, 2]",
            "n = [1, 2]\nfolder = '{n}'",
            "two runs of the sweep have the folder",
        ),
        ("n = [1, 2]", "n = []", "`n` has no values"),
        ("n = [1, 2]", "n = 'x'", "write a list of values"),
    ] {
        let error = runs(&text.replace(from, to)).expect_err(to).to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn settings_have_parameters_too() {
    let text = "[parameters]\nn = 2\ndir = 'x'\nsize = '1 KiB'\n[[program]]\nname = 'a'\ncommand = 'sh'\n\
                [config]\nstage.replicas = '{n}'\nstage.folder = \"\"\"\nout-{dir}\"\"\"\n\
                fabric.eager_max = '{size}'\nfabric.mask = ['{{n}}']\n";
    let mut workflow = parse(text).expect("well-formed");
    workflow.set("n=3").expect("a number");
    let filled = workflow.settings_text().expect("all there");
    let config = &toml::from_str::<toml::Table>(&filled).expect("TOML")["config"];
    let wanted = "stage = { replicas = 3, folder = 'out-x' }\nfabric = { eager_max = '1 KiB', mask = ['{n}'] }";
    let wanted: toml::Table = toml::from_str(wanted).expect("TOML");
    assert_eq!(config.as_table(), Some(&wanted));
    assert_eq!(filled.lines().count(), text.lines().count());
    let line = |text: &str| {
        text.lines()
            .position(|line| line.starts_with("fabric.eager_max"))
    };
    assert_eq!(line(&filled), line(text), "{filled}");
    // Numbers as Rust writes them, which TOML does not parse.
    for (number, written) in [
        (".5", "0.5"),
        ("5.", "5.0"),
        ("+007", "7"),
        ("infinity", "inf"),
        ("1e30", "1e30"),
    ] {
        workflow.set(&format!("n={number}")).expect("a number");
        let filled = workflow.settings_text().expect("all there");
        let config = &toml::from_str::<toml::Table>(&filled).expect(number)["config"];
        let wanted: toml::Table = toml::from_str(&format!("n = {written}")).expect("TOML");
        assert_eq!(config["stage"]["replicas"], wanted["n"], "{number}");
    }
    let error = parse(&text.replace("'{n}'", "'{m}'"))
        .expect("well-formed")
        .settings_text();
    let error = error.expect_err("no parameter").to_string();
    assert!(
        error.starts_with("sample.toml:9: `{m}` is not in [parameters]"),
        "{error}"
    );
}

#[test]
fn a_file_of_another_form_is_refused() {
    let program = "[[program]]\nname = 'a'\ncommand = 'sh'\n";
    assert!(parse(&format!("schema = 1\n{program}")).is_ok());
    let error = message(&format!("schema = 2\nworld = 1\n{program}"));
    assert!(
        error.starts_with("sample.toml:1: this file is of another form"),
        "{error}"
    );
}

/// The form that a value must have is stated in words of the file.
#[test]
fn values_of_another_kind_are_told_what_to_write() {
    let program = "[[program]]\nname = \"a\"\ncommand = \"sh\"\n";
    for (text, expected) in [
        (
            format!("{program}cpus = 0\n"),
            "sample.toml:4: write a list of processors like \"0-3,8\", or one such list per unit",
        ),
        (
            format!("[parameters]\nsize = []\n{program}"),
            "sample.toml:2: write a value, or { default = VALUE, help = \"TEXT\" }, with `required = true` in place of a default",
        ),
        (
            format!("{program}args = [[]]\n"),
            "sample.toml:4: write an argument, or { when = \"{PARAMETER}\", args = [\"ARGUMENT\"] }",
        ),
        (
            format!("{program}units = [1]\n"),
            "sample.toml:4: write a number, a text in quotes, true or false",
        ),
        (
            format!("[parameters]\nsize = {{ help = \"rows\" }}\n{program}"),
            "sample.toml:2: `size` has no default: add one, or `required = true` if each run has to give it",
        ),
    ] {
        assert_eq!(message(&text), expected);
    }
}

#[test]
fn other_mistakes_name_their_line_too() {
    let program = "[[program]]\nname = \"a\"\ncommand = \"sh\"\n";
    for (text, expected) in [
        (
            "".to_owned(),
            "sample.toml:1: the workflow has no [[program]]",
        ),
        ("[job\n".to_owned(), "sample.toml:1: "),
        (
            "[[program]]\nname = \"a\"\n".to_owned(),
            "sample.toml:1: missing field `command`",
        ),
        (
            format!("{program}units = -1\n"),
            "sample.toml:4: `a` has `-1` units",
        ),
        (
            format!("{program}units = \"{{unit}}\"\n"),
            "sample.toml:4: `{unit}` is not in [parameters]",
        ),
        (
            format!("{program}cpus = \"x\"\n"),
            "sample.toml:4: `x` is not a list of processors",
        ),
        (
            format!("{program}args = [\"{{size}}\"]\n"),
            "sample.toml:4: `{size}` is not in [parameters]",
        ),
        (format!("{program}args = 3\n"), "sample.toml:4: "),
        (
            format!("{program}env = {{ 'A=B' = 'x' }}\n"),
            "sample.toml:4: \"A=B\" cannot name a variable",
        ),
        (
            format!("{program}{program}"),
            "sample.toml:5: there are two programs called `a`",
        ),
        // Also if no unit of it is started.
        (
            format!(
                "{program}instances = 2\n{}units = 0\n",
                program.replace("\"a\"", "\"a-1\"")
            ),
            "sample.toml:6: there are two programs called `a-1`, one of them an instance; give one another name",
        ),
        (
            format!("[parameters]\n\"A b\" = 1\n{program}"),
            "sample.toml:2: `A b` cannot name a parameter",
        ),
    ] {
        let message = message(&text);
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let text = "[[program]]\nname = \"solver\"\ncommand = \"builtin-solve\"\n";
    let message = message(text);
    assert!(
        message.starts_with("solver: there is no program `builtin-solve`"),
        "{message}"
    );
    assert!(
        message.contains("did you mean `builtin-solver`?"),
        "{message}"
    );
    let error = Workflow::read(Path::new("/does/not/exist.toml")).expect_err("not there");
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn a_program_without_units_is_left_out() {
    let program = |name: &str, units| {
        format!("[[program]]\nname = '{name}'\ncommand = 'sh'\nunits = {units}\n")
    };
    let text = program("a", 1) + &program("servers", 0);
    let edge = "[[edge]]\nfrom = 'a'\nstream = 's'\nto = 'servers'\n";
    let builtins = Builtins {
        executable: "samite".into(),
        names: &[],
    };
    let workflow = Workflow::parse(Path::new("sample.toml"), text.clone() + edge).unwrap();
    let programs = workflow.programs(&builtins).unwrap();
    let names: Vec<&str> = programs.iter().map(|program| &*program.name).collect();
    assert_eq!(names, ["a"]);
    let error = workflow.edges::<toml::Table>().unwrap_err().to_string();
    assert!(error.contains("`servers` has no units"), "{error}");
}

#[test]
fn a_misspelt_file_finds_its_neighbour() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let there = folder.path().join("wave.toml");
    std::fs::write(&there, "").expect("the folder is new");
    std::fs::write(folder.path().join("wvae.txt"), "").expect("the folder is new");
    let error = Workflow::read(&folder.path().join("wvae.toml")).expect_err("does not exist");
    let hint = format!("(did you mean `{}`?)", there.display());
    assert!(error.to_string().ends_with(&hint), "{error}");
}
