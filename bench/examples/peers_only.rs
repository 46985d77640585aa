//! Measures the peers alone:
//! `cargo run -p samite-bench --example peers_only -- [BENCH] [CASES] [REPEATS] [JSON]`.

use samite_bench::{Options, run};

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let bench = args.next().unwrap_or_else(|| "message".to_owned());
    let only = args.next();
    let repeats = args.next().map_or(Ok(3), |text| text.parse())?;
    let json = args.next();
    let options = Options {
        only,
        repeats,
        quick: true,
        ..Options::default()
    };
    let figures = run(&bench, &options)?;
    print!("{figures}");
    if let Some(path) = json {
        std::fs::write(path, figures.json()?)?;
    }
    Ok(())
}
