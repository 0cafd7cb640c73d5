// SPDX-FileCopyrightText: 2026 IronCore contributors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"

	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/class"
	"github.com/ironcore-dev/cloud-hypervisor-provider/internal/config/document"
)

// LoadClasses returns the machine classes that the configuration names. A nil read means os.ReadFile.
// No class at all is an error here and not in Load, because only serving needs classes. The set is nil
// when the report has an error.
func (c *Config) LoadClasses(read ReadFile) (*class.Set, *Report) {
	classes, report := c.classes(read)
	if report.Err() != nil {
		return nil, report
	}
	set, err := class.NewSet(classes)
	if err != nil {
		report.Errorf(Position{}, "machineClasses", "%v", err)
		return nil, report
	}
	return set, report
}

func (c *Config) classes(read ReadFile) ([]class.Class, *Report) {
	report := &Report{}
	if c.MachineClasses.File == "" {
		if len(c.MachineClasses.Inline) == 0 {
			report.Add(noClasses("there is no machine class, so no machine could be created",
				"set machineClasses.file (--supported-machine-classes) or machineClasses.inline (--machine-class)"))
		}
		return c.MachineClasses.Inline, report
	}
	if read == nil {
		read = os.ReadFile
	}
	file := Position{Source: c.MachineClasses.File}
	data, err := read(c.MachineClasses.File)
	if err != nil {
		report.Errorf(file, "", "cannot read the machine classes: %v", reason(err))
		return nil, report
	}
	found, report := class.Parse(data, c.MachineClasses.File)
	if len(found) == 0 && report.Err() == nil {
		p := noClasses("the file holds no machine class", "")
		p.Position = file
		report.Add(p)
	}
	return found, report
}

func noClasses(message, suggestion string) Problem {
	return Problem{Severity: document.Error, Path: "machineClasses", Message: message, Suggestion: suggestion}
}

// reason leaves out the path that the position names already.
func reason(err error) error {
	var at *os.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}
