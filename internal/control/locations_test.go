package control

import "testing"

func TestPlacesThatAreNotListedAreClosed(t *testing.T) {
	b := &Broker{set: Settings{
		Closed:    []string{"/srv/gpubroker"},
		Locations: []Location{{Prefix: "/srv"}, {Prefix: "s3://footage/in/", Projects: []string{"media"}}},
	}}
	media, lab, admin := who{project: "media"}, who{project: "lab"}, who{anywhere: true}
	for _, c := range []struct {
		who     who
		address string
		open    bool
	}{
		{media, "/srv/clips/a.mov", true},
		{media, "file:///srv/clips/a.mov", true},
		{media, "/srv/clips/../../etc/shadow", false},
		{media, "/srvother/a", false},
		{media, "/etc/shadow", false},
		{media, "s3://footage/in/a.mov", true},
		{media, "s3://footage/in/../secret", false},
		{media, "s3://footage/inside", false},
		{media, "s3://footage/in/a?endpoint=http://evil", false},
		{media, "s3://footage/secret/%2e%2e/in/x", false},
		{media, "s3://footage/in#x/y", false},
		{lab, "s3://footage/in/a.mov", false},
		{lab, "/srv/x", true},
		{admin, "/etc/hosts", true},
		{admin, "/srv/gpubroker/client.json", false},
		{media, "/srv/gpubroker/objects/x", false},
		{media, "/srv/clips/../gpubroker/client.json", false},
	} {
		if err := b.mayTouch(c.who, c.address); (err == nil) != c.open {
			t.Errorf("%+v at %s: %v", c.who, c.address, err)
		}
	}
}
