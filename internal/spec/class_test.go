package spec

import "testing"

// Two runs of one script are a class, whatever night, files, place and price; what
// changes the work makes another.
func TestClass(t *testing.T) {
	const text = `
name: nightly
project: media
scenario: transcode
tasks: {list: [a.mp4, b.mp4]}
outputs: {to: "s3://done/{{stem}}.mp4"}
run: {command: [ffmpeg, -i, "{{input}}", "{{output}}"], env: {PRESET: slow}}
`
	class := func(sets ...string) string {
		j, err := Parse("job.yaml", []byte(text), sets...)
		if err != nil {
			t.Fatal(err)
		}
		return j.Class()
	}
	same := class()
	for _, set := range []string{
		"name=other", "tasks.list=[c.mp4]", "tasks.parallelism=3", "deadline=06:00 UTC", "budget.max=5 USD", "resources.gpu=[l4, t4]",
		"resources.regions=eu-west-1", "resources.max_price=1 USD", "resources.memory=32GiB", "resources.vcpu=8", "outputs.to=s3://other/{{stem}}.mp4",
		"work.time=5m", "max_duration=1h", "spot.policy=never", "retry.failures=3", "queue=night", "priority=70",
	} {
		sets := []string{set}
		if set == "work.time=5m" {
			sets = append(sets, "work.on=l4")
		}
		if got := class(sets...); got != same {
			t.Errorf("with %s it is another class", set)
		}
	}
	for _, set := range []string{
		"project=film", "scenario=render", "run.env.PRESET=fast", "resources.slots=4", "resources.gpu_count=2", "run.command=[ffmpeg, '{{input}}', '{{output}}']",
		"workdir=src",
	} {
		if got := class(set); got == same {
			t.Errorf("with %s it is the same class", set)
		}
	}
	// A work folder's content may change, the name that it is run under may not.
	if class("workdir=src") != class("workdir=other") || class("workdir=src") == class("workdir=src", "name=other") {
		t.Error("with a work folder the name tells classes apart")
	}
}
