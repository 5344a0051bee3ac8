//! The `weir` command. `serve` runs the server; `bench`, `rescue` and `check` work without a
//! server. Every other verb is one call to the server.
//!
//! Not here: the definitions of the calls (weir-api), the engine.
//!
//! Invariants:
//! - data goes to standard output, messages and errors to standard error;
//! - the exit code is 0 for success, 1 for a negative result (only `bench`), 2 for an invalid
//!   command line, and otherwise shows the kind of the error as in `weir_api::wire::exit_code`.

mod bench;
mod cli;
mod offline;
mod selftest;
mod serve_args;

use std::process::ExitCode;

use weir_api::ApiError;
use weir_api::wire::exit_code;

use crate::bench::answer::Answer;
use crate::cli::args::{Cli, Command};
use crate::cli::base::session::Session;
use crate::cli::base::{grammar, hints, output};
use crate::cli::{
    advise, args, bookmark, events, export, filesystem, lun, overview, pool, property, replicate,
    schedule, server, snapshot, stream, target, token, transfer, volume,
};

/// A thread of the server allocates some KiB for each request. The system allocator extends the
/// heap of such a thread by single pages, with a system call and a page fault for each of them
/// (docs/decisions/0039).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    weir_server::process::keep_secrets_out_of_cores();
    grammar::set_grammar(args::grammar);
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(error) => hints::exit(&error),
    };
    let json = cli.json();
    match run(cli) {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::FAILURE,
        Err(error) => {
            output::error(&error, json);
            ExitCode::from(exit_code(error.kind))
        }
    }
}

#[expect(clippy::too_many_lines, reason = "an arm for each verb")]
fn run(cli: Cli) -> Result<Answer, ApiError> {
    let Cli { remote: root, command } = cli;
    let done = match command {
        Command::Serve(arguments) => {
            if root.given() {
                args::refuse("--api, --json and --timeout cannot precede serve");
            }
            weir_server::run(arguments.options()?, output::say)
        }
        Command::Status { remote } => overview::status(&Session::open(&root, &remote.into())?),
        Command::List { list, remote } => {
            overview::list(&Session::open(&root, &remote.into())?, &list)
        }
        Command::Version { remote } => overview::version(&Session::open(&root, &remote.into())?),
        Command::Pool { verb, remote } => pool::run(verb, &Session::open(&root, &remote.into())?),
        Command::Volume { verb, remote } => {
            volume::run(verb, &Session::open(&root, &remote.into())?)
        }
        Command::Filesystem { verb, remote } => {
            filesystem::verbs::run(verb, &Session::open(&root, &remote.into())?)
        }
        Command::Mount { arguments, remote } => {
            filesystem::mount::mount(arguments, &Session::open(&root, &remote.into())?)
        }
        Command::Unmount { arguments, remote } => {
            filesystem::mount::unmount(arguments, &Session::open(&root, &remote.into())?)
        }
        Command::Snapshot { verb, remote } => {
            snapshot::run(verb, &Session::open(&root, &remote.into())?)
        }
        Command::Bookmark { verb, remote } => {
            bookmark::run(verb, &Session::open(&root, &remote.into())?)
        }
        Command::Send(arguments) => {
            let session = Session::open(&root, &arguments.remote.clone().into())?;
            transfer::send(arguments, &session)
        }
        Command::Receive(arguments) => {
            let session = Session::open(&root, &arguments.remote.clone().into())?;
            transfer::receive(arguments, &session)
        }
        Command::Replicate { verb, remote } => {
            replicate::run(verb, &Session::open(&root, &remote.into())?)
        }
        Command::Schedule { verb, remote } => {
            schedule::run(verb, &Session::open(&root, &remote.into())?)
        }
        Command::Get { arguments, remote } => {
            property::get(&arguments, &Session::open(&root, &remote.into())?)
        }
        Command::Set { arguments, remote } => {
            property::set(&arguments, &Session::open(&root, &remote.into())?)
        }
        Command::Inherit { arguments, remote } => {
            property::inherit(&arguments, &Session::open(&root, &remote.into())?)
        }
        Command::Dedupe { verb, remote } => {
            advise::run(verb, &Session::open(&root, &remote.into())?)
        }
        Command::Export { verb, remote } => {
            export::run(&verb, &Session::open(&root, &remote.into())?)
        }
        Command::Share { verb, remote } => {
            filesystem::share::run(verb, &Session::open(&root, &remote.into())?)
        }
        Command::Target { verb, remote } => {
            target::run(verb, &Session::open(&root, &remote.into())?)
        }
        Command::Lun { verb, remote } => lun::run(verb, &Session::open(&root, &remote.into())?),
        Command::Stream { verb, remote } => {
            stream::run(&verb, &Session::open(&root, &remote.into())?)
        }
        Command::Token { verb, remote } => token::run(verb, &Session::open(&root, &remote.into())?),
        Command::Events { arguments, remote } => {
            events::run(&Session::open(&root, &remote.into())?, arguments)
        }
        Command::Server { verb, remote } => {
            server::run(&verb, &Session::open(&root, &remote.into())?)
        }
        Command::Rescue(arguments) => {
            if root.given() {
                args::refuse("--api, --json and --timeout cannot precede rescue");
            }
            offline::rescue::run(&arguments)
        }
        Command::Check(arguments) => {
            if root.given() {
                args::refuse("--api, --json and --timeout cannot precede check");
            }
            offline::check::run(&arguments)
        }
        Command::Bench(arguments) => {
            if root.api.is_some() || root.timeout.is_some() {
                args::refuse("--api and --timeout cannot precede bench");
            }
            return bench::run::run(&arguments, root.json);
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut args::grammar(), "weir", &mut script);
            output::print(&String::from_utf8_lossy(&script))
        }
    };
    done.map(|()| Answer::Yes)
}
