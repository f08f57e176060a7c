from benchmark_scripts import MODEL, PHASES, TOKENIZATION, params, script, tokenizer


def test_every_phase_is_measured(tmp_path, capsys):
    phases, file = script("phases"), tmp_path / "tiny.yaml"
    file.write_text(PHASES)
    phases.main([str(file), "--rows", "4", "--repeats", "1", "--model.embed_dim", "32"])
    peaks, sizes, header, *lines, last = capsys.readouterr().out.splitlines()
    assert "peaks measured" in peaks
    assert sizes.startswith("4 rows of 2 turns, microbatches of 4 rows")
    assert header.split()[:3] == ["side", "ms", "tokens/s"]
    assert [line.split()[:2] for line in lines] == [[name, "here"] for name in phases.MEASURED]
    assert all(float(number) > 0 for line in lines for number in line.split()[2:6])
    assert {line.split()[6] for line in lines} <= {"compute", "memory"}
    assert "turns/s" in last


def test_play_pairs_levels_noise_and_sampling():
    """The shipped tokenizer gives the same tokens for both encodings of FrozenLake, so both must play the same."""
    config = TOKENIZATION.replace(tasks=TOKENIZATION.tasks[:1])
    for how, success, formatted in script("tokenization").play(config, params(), MODEL, tokenizer(), 16):
        assert how in ("sampled", "greedy")
        assert success.shape == formatted.shape == (16, 2)
        assert (success[:, 0] == success[:, 1]).all()
        assert (formatted[:, 0] == formatted[:, 1]).all()
