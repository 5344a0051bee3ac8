//! Tests that a job file that was imported and exported is still the same job for fio and for the
//! import.
//!
//! The parent module tests single options.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;

/// Job files as users write them.
const FILES: [(&str, &str); 9] = [
    ("database", JOBS),
    (
        "long",
        "[global]\nioengine=io_uring\ndirect=1\nsize=200g\nfilename=/dev/sdx\nruntime=1h\n\
         time_based=1\nramp_time=90\n[write]\nrw=write\nbs=1m\niodepth=32\n[read]\nstonewall\n\
         rw=randread\nbs=4k\niodepth=16\nnumjobs=8\n",
    ),
    (
        "rates",
        "[global]\nioengine=libaio\ndirect=1\nsize=1g\nfilename=x\nruntime=30\ntime_based\n\
         iodepth=64\n[both]\nrw=randrw\nrate_iops=100,300\nnumjobs=2\n[one]\nstonewall\n\
         rw=randrw\nrate_iops=500\n[poisson]\nstonewall\nrw=randwrite\nbs=8k\nrate_iops=250\n\
         rate_process=poisson\n",
    ),
    (
        "sizes",
        "[global]\nioengine=libaio\ndirect=1\nsize=8g\nfilename=x\nruntime=500ms\ntime_based\n\
         iodepth=4\n[range]\nrw=randwrite\nbsrange=4k-64k\n[each]\nstonewall\nrw=randrw\n\
         rwmixread=70\nbs=8k,32k\n[ranges]\nstonewall\nrw=randrw\nbsrange=4k-8k,16k-64k\n\
         [aligned]\nstonewall\nrw=randread\nbs=4k\nblockalign=64k\n",
    ),
    (
        "order",
        "[global]\nioengine=libaio\ndirect=1\nsize=1g\nfilename=x\nruntime=30\ntime_based\n\
         [part]\nrw=randread\npercentage_random=30\niodepth=8\n[parts]\nstonewall\nrw=randrw\n\
         percentage_random=20,80\n[both]\nstonewall\nrw=rw\nrwmixwrite=20\nbs=64k\n\
         [shared]\nstonewall\nrw=read\nnumjobs=4\nbs=128k\n",
    ),
    (
        "files",
        "[seq]\nioengine=posixaio\ndirect=1\nrw=write\nbs=256k\nsize=2g\nnumjobs=4\nruntime=2m\n\
         time_based\niodepth=2\n[random]\nstonewall\nrw=randrw\nsize=2g\nnumjobs=4\n\
         ioengine=posixaio\ndirect=1\nruntime=2m\ntime_based\niodepth=2\n",
    ),
    (
        "parts",
        "[job]\nioengine=libaio\ndirect=1\nrw=read\nbs=1m\nsize=10g\noffset_increment=10g\n\
         filename=x\nnumjobs=3\nruntime=60s\ntime_based\nrandom_distribution=random\n",
    ),
    (
        "bytes",
        "[global]\nioengine=libaio\ndirect=1\nsize=1g\nfilename=x\niodepth=4\n[all]\nrw=write\n\
         bs=1m\n[twice]\nstonewall\nrw=randread\nbs=12k\nio_size=2g\nnumjobs=2\n[first]\n\
         stonewall\nrw=randread\nbssplit=4k/50:12k/50\nruntime=60\n",
    ),
    (
        "trims",
        "[job]\nioengine=libaio\ndirect=1\nrw=randtrim\nbs=1m\nsize=10g\nfilename=/dev/sdx\n\
         iodepth=4\nruntime=60\ntime_based\n[seq]\nstonewall\nrw=trim\nbs=1m\nsize=10g\n\
         ioengine=libaio\ndirect=1\nfilename=/dev/sdx\nruntime=60\ntime_based\n",
    ),
];

/// Returns the options that decide the load of each job, as fio parsed them.
fn as_fio_reads(path: &Path) -> Vec<BTreeMap<String, Vec<String>>> {
    let mut fio = Command::new("fio");
    fio.args(["--parse-only", "--debug=parse"]).arg(path).env("WEIR_TARGET", "x");
    let output = fio.output().expect("the program fio is missing: install the package fio");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let defaults = [("bs", "4096"), ("iodepth", "1"), ("numjobs", "1"), ("ramp_time", "0")];
    let mut global: BTreeMap<String, Vec<String>> = defaults
        .iter()
        .map(|(word, value)| ((*word).to_owned(), vec![(*value).to_owned()]))
        .collect();
    let (mut jobs, mut word): (Vec<BTreeMap<_, _>>, _) = (Vec::new(), String::new());
    let (mut in_global, mut is_new) = (true, false);
    for line in text.lines() {
        let line = line.strip_prefix("parse").map_or(line, |rest| {
            rest.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start()
        });
        if let Some(name) = line.strip_prefix("Parsing section ") {
            in_global = name == "[global]";
            if !in_global {
                jobs.push(global.clone());
            }
        } else if let Some(rest) = line.strip_prefix("handle_option=") {
            let (name, value) = rest.split_once(", ptr=").unwrap_or((rest, ""));
            word = name.to_owned();
            is_new = true;
            if ["rw", "bsrange", "bssplit", "percentage_random"].contains(&name) {
                let values = if in_global { &mut global } else { jobs.last_mut().unwrap() };
                values.insert(word.clone(), words_of(value));
                word.clear();
            }
        } else if let Some(value) = line.split_once("out=").map(|(_, value)| value.trim()) {
            let values = if in_global { &mut global } else { jobs.last_mut().unwrap() };
            let values = values.entry(word.clone()).or_default();
            if std::mem::take(&mut is_new) {
                values.clear();
            }
            values.push(value.to_owned());
        }
    }
    jobs
}

/// Splits the value of an option into words and sizes, for options whose parsed value fio does not
/// print.
fn words_of(value: &str) -> Vec<String> {
    let plain = |part: &str| size_bytes(part, 1024).map_or(part.to_owned(), |it| it.to_string());
    value.split(['-', ':', '/', ',']).map(plain).collect()
}

/// Options that must be equal before and after the round trip, with equivalent spellings unified.
fn load_of(mut job: BTreeMap<String, Vec<String>>) -> BTreeMap<String, Vec<String>> {
    if let Some(rates) = job.get_mut("rate_iops") {
        // If the job has a single rate, this rate applies to both reads and writes.
        rates.resize(2, rates[0].clone());
    }
    if let Some(sizes) = job.get_mut("bs") {
        sizes.resize(2, sizes[0].clone());
    }
    if let Some(write) = job.remove("rwmixwrite") {
        let read = 100 - write[0].parse::<u32>().unwrap();
        job.insert("rwmixread".to_owned(), vec![read.to_string()]);
    }
    if job["rw"].iter().any(|rw| ["rw", "randrw"].contains(&rw.as_str())) {
        job.entry("rwmixread".to_owned()).or_insert_with(|| vec!["50".to_owned()]);
    }
    if !job.contains_key("time_based") && !job.contains_key("io_size") {
        // A job without a run time transfers all of its size once.
        job.insert("io_size".to_owned(), job["size"].clone());
    }
    let same = [
        "rw",
        "bs",
        "bsrange",
        "bssplit",
        "blockalign",
        "iodepth",
        "numjobs",
        "runtime",
        "ramp_time",
        "size",
        "io_size",
        "rate_iops",
        "rate_process",
        "rwmixread",
        "percentage_random",
        "time_based",
        "direct",
    ];
    job.retain(|word, _| same.contains(&word.as_str()));
    job
}

fn exported(spec: &RunSpec, folder: &Path, name: &str) -> (std::path::PathBuf, String) {
    let text = export_fio(spec).unwrap_or_else(|error| panic!("{name}: {error}"));
    let path = folder.join(format!("{name}-export.fio"));
    std::fs::write(&path, &text).unwrap();
    (path, text)
}

#[test]
fn exported_import_is_the_same_job_to_fio() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in FILES {
        let path = folder.path().join(format!("{name}.fio"));
        std::fs::write(&path, text).unwrap();
        let spec =
            import_fio(name, text, &options()).unwrap_or_else(|error| panic!("{error}")).spec;
        let (export, _) = exported(&spec, folder.path(), name);
        let [before, after] = [&path, &export].map(|path| as_fio_reads(path));
        assert_eq!(before.len(), after.len(), "{name}");
        assert!(!before.is_empty(), "{name}");
        for (before, after) in before.into_iter().zip(after) {
            let has = |word: &str| before.contains_key(word);
            let is_timed = has("time_based") && has("runtime");
            assert!(has("rw") && has("size") && (is_timed || name == "bytes"), "{before:?}");
            assert_eq!(load_of(before), load_of(after), "{name}");
        }
    }
}

#[test]
fn reimported_export_is_the_same_run() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in FILES {
        let before = import_fio(name, text, &options()).unwrap().spec;
        let (_, text) = exported(&before, folder.path(), name);
        let after =
            import_fio(name, &text, &options()).unwrap_or_else(|error| panic!("{error}")).spec;
        assert_eq!(before.dataset.total_bytes(), after.dataset.total_bytes(), "{name}");
        assert_eq!(before.durability, after.durability, "{name}");
        assert_eq!(before.cells, after.cells, "{name}");
    }
}

/// The load of a built-in profile does not change by an export and an import.
#[test]
fn exported_profile_imports_unchanged() {
    for name in ["quick", "backup", "s001-storpool", "s002-vlab"] {
        let spec = load(name, &Options { scale: Some(Scale::Seed), ..options() }).unwrap();
        let text = export_fio(&spec).unwrap();
        let back = import_fio("export.fio", &text, &options()).unwrap_or_else(|e| panic!("{e}"));
        let closed = spec.cells.iter().filter(|cell| cell.search.is_none());
        assert_eq!(back.spec.durability, spec.durability);
        let loads: Vec<_> =
            closed.map(|cell| (cell.load, cell.streams.clone(), cell.duration_ms)).collect();
        let back: Vec<_> = back
            .spec
            .cells
            .iter()
            .map(|cell| (cell.load, cell.streams.clone(), cell.duration_ms))
            .collect();
        assert_eq!(back, loads, "{name}");
    }
}

/// The import parses sizes and times as fio does, or refuses the values.
#[test]
fn sizes_and_times_parse_as_in_fio() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.fio");
    let fio = |word: &str, value: &str, more: &str| {
        let text = format!("[job]\nrw=read\n{more}\n{word}={value}\n");
        std::fs::write(&path, text).unwrap();
        let jobs = as_fio_reads(&path);
        jobs[0][word].last().unwrap().parse::<u64>().unwrap()
    };
    for base in [1024, 1000] {
        let more = format!("kb_base={base}");
        for text in ["4k", "4kb", "4ki", "4kib", "4K", "4KiB", "10m", "2g", "1t", "5b", "7", "0x10"]
        {
            assert_eq!(size_bytes(text, base), Some(fio("filesize", text, &more)), "{text} {base}");
        }
    }
    for text in ["1.5g", "10 m", "-1", "0x1g", "4kx", "4q", "", "k"] {
        assert_eq!(size_bytes(text, 1024), None, "{text}");
    }
    for text in ["60", "5m", "2h", "1d", "500ms", "1500msec", "2000us", "7s"] {
        assert_eq!(time_ms(text), Some(fio("runtime", text, "") / 1000), "{text}");
    }
    for text in ["1h30m", "1.5", "10 m", "10min", "500us", "90sec", "", "-1", "99999999999999999d"]
    {
        assert_eq!(time_ms(text), None, "{text}");
    }
}
